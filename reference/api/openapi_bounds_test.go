// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/api/wiretest"
)

// TestDecodersEqualDocument: what the document allows is decoded, what it refuses is not, at each
// bound and one beyond it. The rows that a schema cannot say are marked; for them the document is
// wider and says the rest in words.
func TestDecodersEqualDocument(t *testing.T) {
	contract, err := wiretest.Load()
	if err != nil {
		t.Fatal(err)
	}
	id := func(n int) string { return strings.Repeat("a", n) }
	b64 := func(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }
	refs := func(n int, name string) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`{"deliveryAttemptId":"d%d","providerId":"p","bindingId":"b","executionId":"e","fields":[{"name":"%s%x","fieldId":"f"}]}`, i, name, i))
		}
		return `"credentialRefs":[` + strings.Join(all, ",") + `],"cwd"`
	}
	type row struct {
		name, from, to string // one replacement in the good text
		fine           bool
		wordsOnly      bool // the schema allows it, the words do not
	}
	ceilings := api.Resources{CPUs: 1 << 50, MemoryBytes: 1 << 50, PIDs: 1 << 50, WorkspaceBytes: 1 << 50, WorkspaceInodes: 1 << 50}
	for _, group := range []struct {
		schema, good string
		decode       func([]byte) error
		rows         []row
	}{
		{"CreateRequest", `{"protocolVersion":"hallmark.worker.v1","workspaceId":"ws","sessionId":"s","clientLeaseId":"l","idleTimeoutMs":2000,"hardTimeoutMs":3000,` +
			`"image":"` + api.Digest(nil) + `","expected":{"cohortId":"` + api.Digest(nil) + `","pinsDigest":"` + api.Digest(nil) + `"},` +
			`"resources":{"cpus":1,"memoryBytes":1,"pids":1,"workspaceBytes":1,"workspaceInodes":1}}`,
			func(b []byte) error { _, err := api.DecodeCreate(b, ceilings); return err },
			[]row{
				{name: "good", fine: true},
				{"longest id", `"ws"`, `"` + id(128) + `"`, true, false},
				{"longer id", `"ws"`, `"` + id(129) + `"`, false, false},
				{"empty id", `"ws"`, `""`, false, false},
				{"id begins with a dot", `"ws"`, `".a"`, false, false},
				{"id with a slash", `"ws"`, `"a/b"`, false, false},
				{"id ends with LF", `"ws"`, `"a\n"`, false, false},
				{"id of all characters", `"ws"`, `"0AZaz9._:-"`, true, false},
				{"shortest idle", `2000`, `1000`, true, false},
				{"shorter idle", `2000`, `999`, false, false},
				{"longest idle", `2000`, `1800000`, true, false},
				{"longer idle", `2000`, `1800001`, false, false},
				{"longest hard", `3000`, `86400000`, true, false},
				{"longer hard", `3000`, `86400001`, false, false},
				{"shorter hard", `3000`, `999`, false, false},
				{"a tag", `"image":"` + api.Digest(nil), `"image":"busybox:latest`, false, false},
				{"upper case digest", `"image":"sha256:e`, `"image":"sha256:E`, false, false},
				{"no cpus", `"cpus":1`, `"cpus":0`, false, false},
				{"member too many", `"sessionId"`, `"env":{},"sessionId"`, false, false},
				{"member missing", `"sessionId":"s",`, ``, false, false},
				{"null", `"sessionId":"s"`, `"sessionId":null`, false, false},
				{"other case", `"sessionId"`, `"sessionID"`, false, false},
				{"another version", `.v1"`, `.v2"`, false, true},
			}},
		{"ExecRequest", `{"invocationId":"i","argv":["x"],"cwd":"","timeoutMs":5,"maxOutputBytes":6}`,
			func(b []byte) error { _, err := api.DecodeExec(b); return err },
			[]row{
				{name: "good", fine: true},
				{"no argv", `["x"]`, `[]`, false, false},
				{"empty program", `["x"]`, `[""]`, false, false},
				{"empty argument", `["x"]`, `["x",""]`, true, false},
				{"most arguments", `["x"]`, `["x"` + strings.Repeat(`,"a"`, 255) + `]`, true, false},
				{"more arguments", `["x"]`, `["x"` + strings.Repeat(`,"a"`, 256) + `]`, false, false},
				{"longest argument", `["x"]`, `["` + id(65536) + `"]`, true, false},
				{"longer argument", `["x"]`, `["` + id(65537) + `"]`, false, false},
				{"longer together", `["x"]`, `["` + id(65536) + `","a"]`, false, true},
				{"NUL", `["x"]`, `["x","a\u0000b"]`, false, false},
				{"folder", `"cwd":""`, `"cwd":"a/b"`, true, false},
				{"dot", `"cwd":""`, `"cwd":"."`, false, false},
				{"dot dot", `"cwd":""`, `"cwd":"a/../b"`, false, false},
				{"three dots", `"cwd":""`, `"cwd":"a/.../..b/.c/d.."`, true, false},
				{"absolute", `"cwd":""`, `"cwd":"/a"`, false, false},
				{"slash at the end", `"cwd":""`, `"cwd":"a/"`, false, false},
				{"two slashes", `"cwd":""`, `"cwd":"a//b"`, false, false},
				{"path with NUL", `"cwd":""`, `"cwd":"a\u0000"`, false, false},
				{"path with LF", `"cwd":""`, `"cwd":"a\nb/..\n"`, true, false},
				{"longest path", `"cwd":""`, `"cwd":"` + id(4096) + `"`, true, false},
				{"longer path", `"cwd":""`, `"cwd":"` + id(4097) + `"`, false, false},
				{"longer in bytes", `"cwd":""`, `"cwd":"` + strings.Repeat("ä", 2049) + `"`, false, true},
				{"stdin", `"timeoutMs"`, `"stdin":"` + b64(1) + `","timeoutMs"`, true, false},
				{"empty stdin", `"timeoutMs"`, `"stdin":"","timeoutMs"`, true, false},
				{"most stdin", `"timeoutMs"`, `"stdin":"` + b64(1<<20) + `","timeoutMs"`, true, false},
				{"more stdin", `"timeoutMs"`, `"stdin":"` + b64(1<<20+3) + `","timeoutMs"`, false, false},
				{"spare bits", `"timeoutMs"`, `"stdin":"AB==","timeoutMs"`, false, false},
				{"other alphabet", `"timeoutMs"`, `"stdin":"_-8=","timeoutMs"`, false, false},
				{"no padding", `"timeoutMs"`, `"stdin":"AA","timeoutMs"`, false, false},
				{"no time", `5`, `0`, false, false},
				{"longest time", `5`, `900000`, true, false},
				{"longer time", `5`, `900001`, false, false},
				{"no output", `6`, `0`, false, false},
				{"most output", `6`, `4194304`, true, false},
				{"more output", `6`, `4194305`, false, false},
				{"fraction", `6`, `6.5`, false, false},
				{"reference", `"cwd"`, refs(1, "A"), true, false},
				{"most references", `"cwd"`, refs(16, "A"), true, false},
				{"more references", `"cwd"`, refs(17, "A"), false, false},
				{"no references", `"cwd"`, `"credentialRefs":[],"cwd"`, false, false},
				{"reference without field", `"cwd"`, strings.Replace(refs(1, "A"), `{"name":"A0","fieldId":"f"}`, "", 1), false, false},
				{"longest name", `"cwd"`, refs(1, id(255)), true, false},
				{"longer name", `"cwd"`, refs(1, id(256)), false, false},
				{"reserved name", `"cwd"`, refs(1, "LD_"), false, true},
				{"env", `"cwd"`, `"env":{},"cwd"`, false, false},
				{"secretEnv", `"cwd"`, `"secretEnv":[],"cwd"`, false, false},
			}},
		{"FSRequest", `{"op":"stat","path":"a"}`,
			func(b []byte) error { _, err := api.DecodeFS(b); return err },
			[]row{
				{name: "good", fine: true},
				{"the workspace itself", `,"path":"a"`, ``, true, false},
				{"bytes", `"path":"a"`, `"pathBytes":"/w=="`, true, false},
				{"both", `"path":"a"`, `"path":"a","pathBytes":"/w=="`, false, false},
				{"empty path", `"path":"a"`, `"path":""`, true, false},
				{"empty bytes", `"path":"a"`, `"pathBytes":""`, false, false},
				{"empty path and bytes", `"path":"a"`, `"path":"","pathBytes":"/w=="`, true, false},
				{"empty rest", `"path":"a"`, `"path":"a","to":"","cursor":"","limit":0`, true, false},
				{"mkdir of nothing", `"stat","path":"a"`, `"mkdir","path":""`, false, false},
				{"rename to nothing", `"stat"`, `"rename","to":""`, false, false},
				{"unknown operation", `stat`, `chmod`, false, false},
				{"target", `"path":"a"`, `"path":"a","to":"b"`, false, false},
				{"limit", `"path":"a"`, `"path":"a","limit":1`, false, false},
				{"list page", `"stat","path":"a"`, `"list","cursor":"x","limit":1000`, true, false},
				{"list too long", `"stat","path":"a"`, `"list","limit":1001`, false, false},
				{"long cursor", `"stat","path":"a"`, `"list","cursor":"` + id(8193) + `"`, false, false},
				{"mkdir without path", `"stat","path":"a"`, `"mkdir"`, false, false},
				{"remove", `stat`, `remove`, true, false},
				{"rename without target", `stat`, `rename`, false, false},
				{"rename", `"stat"`, `"rename","to":"b"`, true, false},
				{"rename to bytes", `"stat"`, `"rename","toBytes":"/w=="`, true, false},
				{"rename to both", `"stat"`, `"rename","toBytes":"/w==","to":"b"`, false, false},
				{"readlink of all", `"stat","path":"a"`, `"readlink"`, false, false},
				{"unsafe bytes", `"path":"a"`, `"pathBytes":"Li4="`, false, true},
			}},
	} {
		for _, r := range group.rows {
			t.Run(fmt.Sprintf("%s %s", group.schema, r.name), func(t *testing.T) {
				text := group.good
				if r.name != "good" {
					if text = strings.Replace(text, r.from, r.to, 1); text == group.good {
						t.Fatal("nothing was replaced")
					}
				}
				if err := group.decode([]byte(text)); (err == nil) != r.fine {
					t.Errorf("the decoder says %v", err)
				}
				if err := contract.Check(group.schema, []byte(text)); (err == nil) != (r.fine || r.wordsOnly) {
					t.Errorf("the document says %v", err)
				}
			})
		}
	}
}
