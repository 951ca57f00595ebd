package main

import (
	"bufio"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// warnings are what a server warns of before it listens.
func warnings(t *testing.T, env ...string) (all []string) {
	t.Helper()
	cmd := command(t, append([]string{"REDIS_URL=memory:", "PORT=0"}, env...)...)
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadBytes('\n')
		require.NoError(t, err)
		require.NotContains(t, string(line), "planted")
		var entry struct{ Level, Msg, Name string }
		require.NoError(t, json.Unmarshal(line, &entry))
		if entry.Msg == "listening" {
			break
		}
		if entry.Level == "warn" {
			all = append(all, entry.Msg+entry.Name)
		}
	}
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	return all
}

func TestAMisspeltVariableIsWarnedOf(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"a variable is not knownPINBOARD_LEASE_TTL", "a variable is not knownPINBOARD_PORT"}, warnings(t,
		"PINBOARD_PASSPORT="+document, "PINBOARD_PORT=80", "PINBOARD_LEASE_TTL=planted"))
	require.Empty(t, warnings(t, `PINBOARD_PASSPORT={"providers":[{"type":"staticToken","id":"p","keys":[{"name":"k","token":{"env":"PINBOARD_OURS"}}]}]}`,
		"PINBOARD_OURS=planted-token-of-nobody", "PINBOARD_URL=planted", "PINBOARD_TOKEN=planted", "PINBOARD_DRAIN_RATE=1", "PINBOARD_LEASE_TTL_MS=15000",
		"PINBOARD_ALLOW_DEV_IN_PRODUCTION=1", "PINBOARD_MAX_BODY_BYTES=",
		// Of Kubernetes, for Services "pinboard" and "pinboard-api".
		"PINBOARD_SERVICE_HOST=10.0.0.1", "PINBOARD_SERVICE_PORT=8080", "PINBOARD_SERVICE_PORT_HTTP=8080", "PINBOARD_PORT=tcp://10.0.0.1:8080",
		"PINBOARD_PORT_8080_TCP=tcp://10.0.0.1:8080", "PINBOARD_PORT_8080_TCP_PROTO=tcp", "PINBOARD_PORT_8080_TCP_PORT=8080",
		"PINBOARD_PORT_8080_TCP_ADDR=10.0.0.1", "PINBOARD_API_SERVICE_HOST=10.0.0.2", "PINBOARD_API_PORT=tcp://10.0.0.2:80"))
}

func TestAPassportWithoutProvidersIsWarnedOf(t *testing.T) {
	t.Parallel()
	for _, empty := range []string{`{}`, `{"providers":[]}`, `{"namespaces":{"*":{"allow":"anonymous"}}}`} {
		require.Equal(t, []string{"PINBOARD_PASSPORT has no providers: no worker can register, and no operator can ask"},
			warnings(t, "PINBOARD_PASSPORT="+empty))
	}
}
