package supervisor
import ("testing";"os";"fmt";"strings";"time"
"github.com/hallmark-sandbox/hallmark/ci/lab")
func TestZZ(t *testing.T){
 l,err:=lab.Find(); if err!=nil {t.Fatal(err)}
 for _,n:=range []string{lab.RuntimeRunsc, lab.RuntimeAlt} {
 t.Run(n, func(t *testing.T){
 s:=ociSandbox(t,l.Runtimes[n].Path,l.Runtimes[n].Args)
 c:=s.connect(t)
 for _,v:=range [][]string{{"look"},{"daemon","d.beat"},{"hold"},{"reaper","r.beat"},{"stopped","st.beat"},{"dial"},{"attack"},{"bomb","60","leave"},{"exit","0"}} {
  b:=time.Now()
  o,err:=c.Exec(t.Context(),spawnOf(v...))
  fmt.Println(n,v,time.Since(b),err,o.ExitCode,o.Signal,o.DescendantsKilled,o.CleanupProven,string(o.Stdout),string(o.Stderr))
 }
 fmt.Println(s.stats(t,c))
 // memory of supervisor procs inside
 out,_:=s.command("/bin/tenant","mem").CombinedOutput()
 fmt.Println(string(out)); _ = os.Stdout; _ = strings.TrimSpace
 time.Sleep(time.Duration(map[bool]int{true:1}[false])*time.Second)
 })}
}
