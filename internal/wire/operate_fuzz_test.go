package wire_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// What an operator's body says comes out within its bounds, and says the same
// when it is written down again.
func FuzzParseOperators(f *testing.F) {
	for _, seed := range []string{
		`{"clientId":"c","deadline":30}`, `{"clientId":"c","sessionId":"s","namespace":"/a","id":"x","deadline":null}`,
		`{"namespace":"/a","id":"x","deadline":1e300,"hostname":"H.Example.:80"}`, `{"clientId":"","deadline":-0}`,
		`{"clientId":"\ud800","deadline":0.0000000005}`, `{"namespace":"/a","id":"x","deadline":"1"}`, `[]`, `null`, "\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if d, err := wire.ParseDrain(text); err == nil {
			requireToken(t, d.ClientID)
			requireDeadline(t, d.Deadline)
			fields := map[string]any{"clientId": d.ClientID}
			if d.Deadline != nil {
				fields["deadline"] = d.Deadline.Seconds()
			}
			again, err := wire.ParseDrain(written(t, fields))
			require.NoError(t, err)
			require.Equal(t, d.ClientID, again.ClientID)
			requireSameDeadline(t, d.Deadline, again.Deadline)
		}
		if client, err := wire.ParseUndrain(text); err == nil {
			requireToken(t, client)
			again, err := wire.ParseUndrain(written(t, map[string]any{"clientId": client}))
			require.NoError(t, err)
			require.Equal(t, client, again)
		}
		if d, err := wire.ParseDeregister(text); err == nil {
			requireToken(t, d.SessionID)
			again, err := wire.ParseDeregister(written(t, d))
			require.NoError(t, err)
			require.Equal(t, d, again)
		}
		if w, err := wire.ParseWindDown(text); err == nil {
			requireWindDown(t, w)
		}
	})
}

func requireWindDown(t *testing.T, w *wire.WindDown) {
	t.Helper()
	require.NoError(t, wire.CheckNamespace(w.Namespace))
	require.NoError(t, wire.CheckID(w.ID))
	requireDeadline(t, w.Deadline)
	fields := map[string]any{"namespace": w.Namespace, "id": w.ID, "deadline": nil}
	if w.Deadline != nil {
		fields["deadline"] = w.Deadline.Seconds()
	}
	if w.Hostname != "" {
		fields["hostname"] = w.Hostname
	}
	again, err := wire.ParseWindDown(written(t, fields))
	require.NoError(t, err)
	require.Equal(t, [3]string{w.Namespace, w.ID, w.Hostname}, [3]string{again.Namespace, again.ID, again.Hostname})
	requireSameDeadline(t, w.Deadline, again.Deadline)
}

func written(t *testing.T, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	require.NoError(t, err)
	return text
}

func requireToken(t *testing.T, text string) {
	t.Helper()
	require.NotEmpty(t, text)
	require.LessOrEqual(t, len(text), 512)
}

func requireDeadline(t *testing.T, d *time.Duration) {
	t.Helper()
	if d != nil {
		require.GreaterOrEqual(t, *d, time.Duration(0))
		require.LessOrEqual(t, *d, 3650*24*time.Hour)
	}
}

// requireSameDeadline allows for what a float64 of seconds can't tell apart.
func requireSameDeadline(t *testing.T, want, got *time.Duration) {
	t.Helper()
	require.Equal(t, want == nil, got == nil)
	if want != nil {
		require.InDelta(t, float64(*want), float64(*got), 100)
	}
}
