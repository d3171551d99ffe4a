// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

var ceilings = Resources{CPUs: 2000, MemoryBytes: 1 << 30, PIDs: 512, WorkspaceBytes: 1 << 30, WorkspaceInodes: 100_000}

func digestOf(c string) string { return DigestPrefix + strings.Repeat(c, 64) }

func goodCreate() CreateRequest {
	return CreateRequest{
		ProtocolVersion: ProtocolVersion, WorkspaceID: "ws-1", SessionID: "s", ClientLeaseID: "lease:1", IdleTimeoutMs: 60_000,
		HardTimeoutMs: 600_000, Image: digestOf("a"), Expected: Expected{digestOf("b"), digestOf("c")},
		Resources: Resources{CPUs: 500, MemoryBytes: 1 << 26, PIDs: 64, WorkspaceBytes: 1 << 24, WorkspaceInodes: 1000},
	}
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	b, err := strictjson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func codeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestDecodeCreate(t *testing.T) {
	good := marshal(t, goodCreate())
	got, err := DecodeCreate([]byte(good), ceilings)
	if err != nil || got != goodCreate() {
		t.Fatalf("the good request: %+v, %v", got, err)
	}
	change := func(f func(*CreateRequest)) string {
		r := goodCreate()
		f(&r)
		return marshal(t, r)
	}
	for name, tt := range map[string]struct {
		body string
		code Code
	}{
		"other version":     {change(func(r *CreateRequest) { r.ProtocolVersion = "hallmark.worker.v2" }), ProtocolMismatch},
		"tag for an image":  {change(func(r *CreateRequest) { r.Image = "busybox:latest" }), RequestInvalid},
		"upper-case digest": {change(func(r *CreateRequest) { r.Image = digestOf("A") }), RequestInvalid},
		"id with slash":     {change(func(r *CreateRequest) { r.WorkspaceID = "a/b" }), RequestInvalid},
		"id dot-dot":        {change(func(r *CreateRequest) { r.WorkspaceID = ".." }), RequestInvalid},
		"id leading dash":   {change(func(r *CreateRequest) { r.SessionID = "-a" }), RequestInvalid},
		"id of 129":         {change(func(r *CreateRequest) { r.ClientLeaseID = strings.Repeat("a", 129) }), RequestInvalid},
		"id confusable":     {change(func(r *CreateRequest) { r.ClientLeaseID = "l\u0435ase" }), RequestInvalid},
		"id empty":          {change(func(r *CreateRequest) { r.SessionID = "" }), RequestInvalid},
		"id newline":        {change(func(r *CreateRequest) { r.SessionID = "a\n" }), RequestInvalid},
		"idle above":        {change(func(r *CreateRequest) { r.IdleTimeoutMs = MaxIdleTimeoutMs + 1 }), RequestInvalid},
		"idle zero":         {change(func(r *CreateRequest) { r.IdleTimeoutMs = 0 }), RequestInvalid},
		"hard above":        {change(func(r *CreateRequest) { r.HardTimeoutMs = MaxHardTimeoutMs + 1 }), RequestInvalid},
		"cpus above":        {change(func(r *CreateRequest) { r.Resources.CPUs = 2001 }), RequestInvalid},
		"pids zero":         {change(func(r *CreateRequest) { r.Resources.PIDs = 0 }), RequestInvalid},
		"negative memory":   {change(func(r *CreateRequest) { r.Resources.MemoryBytes = -1 }), RequestInvalid},
		"inodes above":      {change(func(r *CreateRequest) { r.Resources.WorkspaceInodes = 100_001 }), RequestInvalid},
		"bytes above":       {change(func(r *CreateRequest) { r.Resources.WorkspaceBytes = 1<<30 + 1 }), RequestInvalid},
		"no cohort":         {change(func(r *CreateRequest) { r.Expected.CohortID = "" }), RequestInvalid},
		"unknown member":    {strings.Replace(good, `{`, `{"env":{},`, 1), RequestInvalid},
		"case variant":      {strings.Replace(good, `"image"`, `"Image"`, 1), RequestInvalid},
		"duplicate":         {strings.Replace(good, `{`, `{"image":"`+digestOf("d")+`",`, 1), RequestInvalid},
		"missing":           {strings.Replace(good, `"sessionId":"s",`, ``, 1), RequestInvalid},
		"null":              {strings.Replace(good, `"sessionId":"s"`, `"sessionId":null`, 1), RequestInvalid},
		"float":             {strings.Replace(good, `60000`, `60000.0`, 1), RequestInvalid},
		"exponent":          {strings.Replace(good, `60000`, `6e4`, 1), RequestInvalid},
		"string number":     {strings.Replace(good, `60000`, `"60000"`, 1), RequestInvalid},
		"trailing":          {good + "{}", RequestInvalid},
		"bom":               {"\ufeff" + good, RequestInvalid},
		"comment":           {good + "// x", RequestInvalid},
		"array":             {"[" + good + "]", RequestInvalid},
		"empty":             {"", RequestInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.body == good {
				t.Fatal("the row changes nothing")
			}
			got, err := DecodeCreate([]byte(tt.body), ceilings)
			if codeOf(err) != tt.code || got != (CreateRequest{}) {
				t.Errorf("got %v, %v; want %s", got, err, tt.code)
			}
		})
	}
}

func TestDecodeExec(t *testing.T) {
	base := ExecRequest{InvocationID: "i1", Argv: []string{"./x", "", "y"}, Stdin: []byte("in"), TimeoutMs: 1000, MaxOutputBytes: 1024}
	change := func(f func(*ExecRequest)) string {
		r := base
		r.Argv = append([]string{}, base.Argv...)
		f(&r)
		return marshal(t, r)
	}
	for name, body := range map[string]string{
		"plain":          marshal(t, base),
		"no stdin":       change(func(r *ExecRequest) { r.Stdin = nil }),
		"cwd":            change(func(r *ExecRequest) { r.Cwd = "a/b" }),
		"256 entries":    change(func(r *ExecRequest) { r.Argv = strings.Split(strings.Repeat("a ", 255)+"a", " ") }),
		"64 KiB in all":  change(func(r *ExecRequest) { r.Argv = []string{strings.Repeat("a", MaxArgBytes)} }),
		"1 MiB stdin":    change(func(r *ExecRequest) { r.Stdin = make([]byte, MaxStdinBytes) }),
		"longest, most":  change(func(r *ExecRequest) { r.TimeoutMs, r.MaxOutputBytes = MaxExecTimeoutMs, MaxOutputBytes }),
		"shortest,least": change(func(r *ExecRequest) { r.TimeoutMs, r.MaxOutputBytes = 1, 1 }),
	} {
		t.Run("accepts "+name, func(t *testing.T) {
			if _, err := DecodeExec([]byte(body)); err != nil {
				t.Error(err)
			}
		})
	}
	good := marshal(t, base)
	for name, tt := range map[string]struct {
		body string
		code Code
	}{
		"env":             {strings.Replace(good, `{`, `{"env":{},`, 1), RequestInvalid},
		"null env":        {strings.Replace(good, `{`, `{"env":null,`, 1), RequestInvalid},
		"secretEnv":       {strings.Replace(good, `{`, `{"secretEnv":[],`, 1), RequestInvalid},
		"credentialRefs":  {strings.Replace(good, `{`, `{"credentialRefs":[],`, 1), RequestInvalid},
		"no argv":         {change(func(r *ExecRequest) { r.Argv = nil }), RequestInvalid},
		"empty argv0":     {change(func(r *ExecRequest) { r.Argv = []string{""} }), RequestInvalid},
		"257 entries":     {change(func(r *ExecRequest) { r.Argv = strings.Split(strings.Repeat("a ", 256)+"a", " ") }), RequestInvalid},
		"argv above":      {change(func(r *ExecRequest) { r.Argv = []string{"a", strings.Repeat("a", MaxArgBytes)} }), RequestInvalid},
		"argv NUL":        {change(func(r *ExecRequest) { r.Argv = []string{"a", "b\x00c"} }), RequestInvalid},
		"cwd up":          {change(func(r *ExecRequest) { r.Cwd = "../x" }), PathUnsafe},
		"cwd absolute":    {change(func(r *ExecRequest) { r.Cwd = "/tmp" }), PathUnsafe},
		"stdin above":     {change(func(r *ExecRequest) { r.Stdin = make([]byte, MaxStdinBytes+1) }), RequestInvalid},
		"stdin spare bit": {strings.Replace(good, `"aW4="`, `"aW5="`, 1), RequestInvalid},
		"stdin newline":   {strings.Replace(good, `"aW4="`, `"aW\n4="`, 1), RequestInvalid},
		"timeout above":   {change(func(r *ExecRequest) { r.TimeoutMs = MaxExecTimeoutMs + 1 }), RequestInvalid},
		"timeout zero":    {change(func(r *ExecRequest) { r.TimeoutMs = 0 }), RequestInvalid},
		"output above":    {change(func(r *ExecRequest) { r.MaxOutputBytes = MaxOutputBytes + 1 }), RequestInvalid},
		"output zero":     {change(func(r *ExecRequest) { r.MaxOutputBytes = 0 }), RequestInvalid},
		"bad utf-8":       {strings.Replace(good, `./x`, "\xff", 1), RequestInvalid},
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			if tt.body == good {
				t.Fatal("the row changes nothing")
			}
			if _, err := DecodeExec([]byte(tt.body)); codeOf(err) != tt.code {
				t.Errorf("got %v, want %s", err, tt.code)
			}
		})
	}
}

func TestDecodeFS(t *testing.T) {
	for _, tt := range []struct {
		body string
		code Code // "" accepts
	}{
		{`{"op":"stat","path":"a/b"}`, ""},
		{`{"op":"stat"}`, ""},
		{`{"op":"list","limit":1000,"cursor":"x"}`, ""},
		{`{"op":"rename","path":"a","toBytes":"/w=="}`, ""},
		{`{"op":"mkdir","pathBytes":"YQ=="}`, ""},
		{`{"op":"mkdir"}`, RequestInvalid},
		{`{"op":"chmod","path":"a"}`, RequestInvalid},
		{`{"op":"STAT","path":"a"}`, RequestInvalid},
		{`{"op":"stat","path":"a","pathBytes":"YQ=="}`, RequestInvalid},
		{`{"op":"stat","path":"a","to":"b"}`, RequestInvalid},
		{`{"op":"stat","path":"a","cursor":"b"}`, RequestInvalid},
		{`{"op":"rename","path":"a"}`, RequestInvalid},
		{`{"op":"rename","path":"a","to":"../b"}`, PathUnsafe},
		{`{"op":"list","limit":1001}`, RequestInvalid},
		{`{"op":"list","limit":-1}`, RequestInvalid},
		{`{"op":"stat","pathBytes":"YQ"}`, RequestInvalid},
		{`{"op":"stat","path":"a\u0000"}`, PathUnsafe},
		{`{"op":"remove","path":"./a"}`, PathUnsafe},
	} {
		t.Run(tt.body, func(t *testing.T) {
			c, err := DecodeFS([]byte(tt.body))
			if codeOf(err) != tt.code || (tt.code == "") != (err == nil) {
				t.Fatalf("got %+v, %v; want %q", c, err, tt.code)
			}
			if err == nil && c.Rows < 1 {
				t.Errorf("page of %d rows", c.Rows)
			}
		})
	}
}

func TestDecodeFileQuery(t *testing.T) {
	odd := "a\xff/b"
	blob := url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(odd)))
	for _, tt := range []struct {
		query string
		write bool
		want  string // path
		code  Code
	}{
		{"path=a%2Fb", false, "a/b", ""},
		{"path=a/b", false, "a/b", ""},
		{"pathBytes=" + blob, false, odd, ""},
		{"mode=create&path=a", true, "a", ""},
		{"executable=true&mode=replace&path=a", true, "a", ""},
		{"", false, "", RequestInvalid},
		{"path=", false, "", RequestInvalid},
		{"path=a&path=a", false, "", RequestInvalid},
		{"path=a&pathBytes=", false, "", RequestInvalid},
		{"path=a&pathBytes=YQ%3D%3D", false, "", RequestInvalid},
		{"path=a&mode=create", false, "", RequestInvalid},
		{"path=a", true, "", RequestInvalid},
		{"mode=append&expectedSize=0&path=a", true, "a", ""},
		{"path=a&mode=append&expectedSize=9223372036854775807", true, "a", ""},
		{"path=a&mode=append", true, "", RequestInvalid},
		{"path=a&mode=append&expectedSize=", true, "", RequestInvalid},
		{"path=a&mode=append&expectedSize=-1", true, "", RequestInvalid},
		{"path=a&mode=append&expectedSize=-0", true, "", RequestInvalid},
		{"path=a&mode=append&expectedSize=%2B1", true, "", RequestInvalid},
		{"path=a&mode=append&expectedSize=01", true, "", RequestInvalid},
		{"path=a&mode=append&expectedSize=0x1", true, "", RequestInvalid},
		{"path=a&mode=append&expectedSize=9223372036854775808", true, "", RequestInvalid},
		{"path=a&mode=append&expectedSize=1&expectedSize=1", true, "", RequestInvalid},
		{"path=a&mode=append&expectedSize=1&executable=false", true, "", RequestInvalid},
		{"path=a&mode=create&expectedSize=0", true, "", RequestInvalid},
		{"path=a&mode=replace&expectedSize=1", true, "", RequestInvalid},
		{"path=a&expectedSize=1", true, "", RequestInvalid},
		{"path=a&expectedSize=1", false, "", RequestInvalid},
		{"path=a&mode=append&expectedSize=1", false, "", RequestInvalid},
		{"path=a&mode=create&executable=1", true, "", RequestInvalid},
		{"path=a&mode=create&follow=true", true, "", RequestInvalid},
		{"Path=a", false, "", RequestInvalid},
		{"path=a;mode=create", false, "", RequestInvalid},
		{"path=%ff", false, "", RequestInvalid},
		{"pathBytes=YQ", false, "", RequestInvalid},
		{"pathBytes=YR%3D%3D", false, "", RequestInvalid},
		{"path=..%2Fetc", false, "", PathUnsafe},
		{"path=%2Fetc", false, "", PathUnsafe},
		{"path=a%00", false, "", PathUnsafe},
		{"path=a//b", false, "", PathUnsafe},
		{"path=a/", false, "", PathUnsafe},
		{"path=" + strings.Repeat("a", MaxPathBytes+1), false, "", RequestInvalid},
	} {
		t.Run(fmt.Sprintf("%.40s/%t", tt.query, tt.write), func(t *testing.T) {
			c, err := DecodeFileQuery(tt.query, tt.write)
			if codeOf(err) != tt.code || (tt.code == "") != (err == nil) {
				t.Fatalf("got %+v, %v; want %q", c, err, tt.code)
			}
			if err == nil && string(c.Path) != tt.want {
				t.Errorf("path %q, want %q", c.Path, tt.want)
			}
		})
	}
}

func TestCanonicalDigestIgnoresSpelling(t *testing.T) {
	a, err := DecodeCreate([]byte(marshal(t, goodCreate())), ceilings)
	if err != nil {
		t.Fatal(err)
	}
	spaced := strings.ReplaceAll(strings.ReplaceAll(marshal(t, goodCreate()), `,"`, ` , "`), "lease:1", `l\u0065ase:1`)
	b, err := DecodeCreate([]byte(spaced), ceilings)
	if err != nil {
		t.Fatal(err)
	}
	da, errA := CanonicalDigest(a)
	db, errB := CanonicalDigest(b)
	if errA != nil || errB != nil || da != db || !ValidDigest(da) {
		t.Errorf("%s %v, %s %v", da, errA, db, errB)
	}
	b.Resources.PIDs++
	if dc, err := CanonicalDigest(b); err != nil || dc == da {
		t.Errorf("another request has digest %s, %v", dc, err)
	}
}
