package wire_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestADrainHasAClientAndMayHaveADeadline(t *testing.T) {
	t.Parallel()
	d, err := wire.ParseDrain([]byte(`{"clientId":"c","x":1}`))
	require.NoError(t, err)
	require.Equal(t, &wire.Drain{ClientID: "c"}, d)
	for text, want := range map[string]time.Duration{
		"0": 0, "-0": 0, "30": 30 * time.Second, "0.25": 250 * time.Millisecond, "1e300": 3650 * 24 * time.Hour,
	} {
		d, err := wire.ParseDrain([]byte(`{"clientId":"c","deadline":` + text + `}`))
		require.NoError(t, err, text)
		require.Equal(t, want, *d.Deadline, text)
	}
	for body, field := range map[string]string{
		`{}`: "clientId", `{"clientId":""}`: "clientId", `{"clientId":null}`: "clientId",
		`{"clientId":"c","deadline":-1}`: "deadline", `{"clientId":"c","deadline":"1"}`: "deadline",
		`{"clientId":"c","deadline":null}`: "deadline", `{"clientId":"c","deadline":1e400}`: "deadline",
		`[]`: "body",
	} {
		_, err := wire.ParseDrain([]byte(body))
		require.ErrorContains(t, err, field, body)
	}
	client, err := wire.ParseUndrain([]byte(`{"clientId":"c","deadline":"not looked at"}`))
	require.NoError(t, err)
	require.Equal(t, "c", client)
	for _, body := range []string{`{}`, `{"clientId":7}`, ``, `null`} {
		_, err := wire.ParseUndrain([]byte(body))
		require.Error(t, err, body)
	}
}

func TestAWindDownNeedsItsDeadlineIfOnlyAsNull(t *testing.T) {
	t.Parallel()
	w, err := wire.ParseWindDown([]byte(`{"namespace":"/a","id":"x","deadline":null}`))
	require.NoError(t, err)
	require.Equal(t, &wire.WindDown{Namespace: "/a", ID: "x"}, w)
	w, err = wire.ParseWindDown([]byte(`{"namespace":"/a","id":"x","deadline": 1.5 ,"hostname":"h"}`))
	require.NoError(t, err)
	require.Equal(t, "h", w.Hostname)
	require.Equal(t, 1500*time.Millisecond, *w.Deadline)
	for body, field := range map[string]string{
		`{"namespace":"/a","id":"x"}`:                               "deadline",
		`{"namespace":"/a","id":"x","deadline":"1"}`:                "deadline",
		`{"namespace":"/a","id":"x","deadline":-1}`:                 "deadline",
		`{"namespace":"/a","deadline":1}`:                           "id",
		`{"namespace":"/a","id":"..","deadline":1}`:                 "id",
		`{"id":"x","deadline":1}`:                                   "namespace",
		`{"namespace":"/registry","id":"x","deadline":1}`:           "namespace",
		`{"namespace":"/a","id":"x","deadline":1,"hostname":["h"]}`: "hostname",
	} {
		_, err := wire.ParseWindDown([]byte(body))
		require.ErrorContains(t, err, "field "+field, body)
	}
}
