// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"errors"
	"fmt"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// ReadMutation returns what a file of [SealMutation] says. It verifies no signature: whoever puts
// the file into a bundle need not know the key, and the gate, which does, checks it there.
func ReadMutation(file []byte) (MutationResults, error) {
	var e Envelope
	var st mutationStatement
	if err := decodeCanonical(file, &e); err != nil {
		return MutationResults{}, fmt.Errorf("mutation statement: %w", err)
	}
	if err := strictjson.Unmarshal(e.Payload, &st, payloadLimits); err != nil {
		return MutationResults{}, fmt.Errorf("mutation statement: %w", err)
	}
	if e.PayloadType != InTotoType || st.Type != StatementType || st.PredicateType != MutationPredicateType {
		return MutationResults{}, errors.New("mutation statement: another kind of statement")
	}
	return st.Predicate, nil
}
