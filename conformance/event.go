// SPDX-License-Identifier: Apache-2.0

package conformance

import "encoding/json"

// event is one line of live progress from a process of the run to the parent.
type event struct {
	Proc   int    `json:"proc"`
	Kind   string `json:"kind"` // phase, armed, start, end
	Text   string `json:"text"`
	ID     string `json:"id"`
	Status Status `json:"status"`
	Reason string `json:"reason"`
	Ms     int64  `json:"ms"`
}

// maxEvent is PIPE_BUF of Linux: so much is written to a pipe in one piece, whoever else writes
// (pipe(7)).
const maxEvent = 4096

// tell sends e. Its text is cut where the line would get too long.
func (c *child) tell(e event) {
	e.Proc = c.peers.n
	line, err := json.Marshal(e)
	for err == nil && len(line) >= maxEvent && e.Text != "" {
		e.Text = string([]rune(e.Text)[:len([]rune(e.Text))/2])
		line, err = json.Marshal(e)
	}
	if err != nil {
		return // strings and numbers: cannot happen
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events.Write(append(line, '\n')) // a parent that has gone is noticed by the life line, not here
}
