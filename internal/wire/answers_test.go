package wire_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestAnswersHaveTheFieldsOfTheContract(t *testing.T) {
	t.Parallel()
	zero, some := 0.0, 12.5
	for want, answer := range map[string]any{
		`{"sessionId":"s","expiresInMs":15000,"draining":false}`: wire.Registered{SessionID: "s", ExpiresInMs: 15000},
		// A deadline of 0 stays: its absence would disarm the client's abort.
		`{"sessionId":"s","expiresInMs":1,"draining":true,"drainDeadline":0,"duplicates":[{"ns":"/a","id":"x"}]}`: wire.Registered{
			SessionID: "s", ExpiresInMs: 1, Draining: true, DrainDeadline: &zero, Duplicates: []wire.Ref{{Namespace: "/a", ID: "x"}},
		},
		`{"expiresInMs":15000,"draining":false}`: wire.Beat{ExpiresInMs: 15000},
		// A client refuses a wind-down without a deadline, so null is written.
		`{"expiresInMs":1,"draining":true,"drainDeadline":12.5,"degraded":true,"messages":[` +
			`{"msgId":"m1","type":"wind_down","ns":"/a","id":"x","deadline":null},` +
			`{"msgId":"m2","type":"wind_down","ns":"/a","id":"y","deadline":0}]}`: wire.Beat{
			ExpiresInMs: 1, Draining: true, DrainDeadline: &some, Degraded: true, Messages: []wire.Message{
				{MsgID: "m1", Type: wire.MessageWindDown, Namespace: "/a", ID: "x"},
				{MsgID: "m2", Type: wire.MessageWindDown, Namespace: "/a", ID: "y", Deadline: &zero},
			},
		},
		`{"released":0}`:                          wire.Released{},
		`{"error":"e"}`:                           wire.Error{Error: "e"},
		`{"error":"e","reregister":true}`:         wire.Error{Error: "e", Reregister: true},
		`{"error":"e","superseded":true}`:         wire.Error{Error: "e", Superseded: true},
		`{"detail":"host draining; retry"}`:       wire.Detail{Detail: wire.DetailHostDraining},
		`{"detail":"invalid attestation"}`:        wire.Detail{Detail: wire.DetailInvalidAttestation},
		`{"detail":"lease expired; not serving"}`: wire.Detail{Detail: wire.DetailLeaseExpired},
		`{"value":"v"}`:                           wire.ChallengeAnswer{Value: "v"},
	} {
		text, err := json.Marshal(answer)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
}
