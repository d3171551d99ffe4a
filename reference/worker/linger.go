// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"io"
	"net/http"
	"time"
)

// lingerTimeout bounds how long a refused body is still read.
const lingerTimeout = time.Second

// linger lets a caller that is still sending read the refusal: a connection that is closed under
// it fails the sending first, and the answer is lost (RFC 9112, section 9.6). net/http does that
// too, but not for a request that asked by Expect, which is what large bodies do. Strangers are not
// waited for, and HTTP/2 ends one stream only.
func (s *Server) linger(x *exchange) {
	if !x.admitted || x.r.ProtoMajor != 1 || x.r.ContentLength == 0 {
		return
	}
	rc := http.NewResponseController(x.w)
	if rc.Flush() != nil || rc.SetReadDeadline(time.Now().Add(lingerTimeout)) != nil {
		return
	}
	if _, err := io.Copy(io.Discard, x.r.Body); err == nil {
		_ = rc.SetReadDeadline(time.Time{}) // a next request may follow
	}
}
