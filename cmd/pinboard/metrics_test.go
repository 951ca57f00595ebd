package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// observedServer is a server that tells metrics and logs requests.
type observedServer struct {
	base, metrics string
	stop          func() (access string)
}

func startObserved(t *testing.T, env ...string) *observedServer {
	t.Helper()
	cmd := command(t, append([]string{"PINBOARD_PASSPORT=" + document, "REDIS_URL=memory:", "PORT=0"}, env...)...)
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	s := &observedServer{}
	lines := bufio.NewReader(log)
	for s.base == "" {
		line, err := lines.ReadBytes('\n')
		require.NoError(t, err, "the server ended before it listened")
		var entry struct{ Msg, Addr string }
		require.NoError(t, json.Unmarshal(line, &entry))
		switch entry.Msg {
		case "metrics are told":
			s.metrics = "http://" + entry.Addr
		case "listening":
			_, port, _ := strings.Cut(entry.Addr, "]:")
			s.base = "http://127.0.0.1:" + port
		}
	}
	s.stop = func() string {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		_, err := io.Copy(io.Discard, lines)
		require.NoError(t, err)
		access, err := io.ReadAll(out)
		require.NoError(t, err)
		require.NoError(t, cmd.Wait())
		return string(access)
	}
	return s
}

func fetch(t *testing.T, method, url string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	r.Header.Set("Cookie", "session=planted-cookie")
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(text)
}

func TestMetricsHaveAPortOfTheirOwnAndClientsANamespaceLess(t *testing.T) {
	t.Parallel()
	s := startObserved(t, "PINBOARD_METRICS_ADDR=127.0.0.1:0")
	status, body := fetch(t, http.MethodGet, s.base+"/counters/alice")
	require.Equal(t, http.StatusUnauthorized, status, body)
	status, body = fetch(t, http.MethodGet, s.metrics+"/metrics")
	require.Equal(t, http.StatusOK, status, body)
	for _, line := range []string{
		`pinboard_refusals_total{namespace="other",reason="unauthenticated"} 1`, "pinboard_store_up 1", "pinboard_connections 1",
		"pinboard_connections_turned_away_total 0", "pinboard_connections_cut_total 0", "go_goroutines ", "process_open_fds ",
	} {
		require.Contains(t, body, "\n"+line)
	}
	require.NotContains(t, body, operatorToken)
	for path, want := range map[string]int{"/": 404, "/counters/alice": 404, "/healthz": 404, "/registry/workers": 404, "/debug/pprof/": 404} {
		status, _ = fetch(t, http.MethodGet, s.metrics+path)
		require.Equal(t, want, status, path)
	}
	status, _ = fetch(t, http.MethodPost, s.metrics+"/metrics")
	require.Equal(t, http.StatusMethodNotAllowed, status)
	for _, path := range []string{"/metrics", "/metrics/x"} { // the name is reserved
		status, body = fetch(t, http.MethodGet, s.base+path)
		require.Equal(t, http.StatusBadRequest, status, path)
		require.NotContains(t, body, "pinboard_", path)
	}
	require.Empty(t, s.stop(), "no access log was asked for")
}

func TestTheAccessLogIsOnStandardOutput(t *testing.T) {
	t.Parallel()
	s := startObserved(t, "PINBOARD_ACCESS_LOG=true", "PINBOARD_ACCESS_LOG_SAMPLE=1000")
	require.Empty(t, s.metrics, "nobody asked for metrics")
	const n = 250 // more than a logger that leaves out what is said often would let through
	for range n {
		fetch(t, http.MethodGet, s.base+"/counters/alice/planted-path?access_token=planted-token")
	}
	access := s.stop()
	require.NotContains(t, access, "planted")
	require.Equal(t, n, strings.Count(access, "\n"))
	for line := range strings.Lines(access) {
		var fields struct {
			Namespace, ID, Refused, Address string
			Status                          int
			Took                            float64
		}
		require.NoError(t, json.Unmarshal([]byte(line), &fields))
		require.Positive(t, fields.Took)
		require.Equal(t, []any{"/counters", "alice", "unauthenticated", "127.0.0.1", 401},
			[]any{fields.Namespace, fields.ID, fields.Refused, fields.Address, fields.Status})
	}
}

func TestAnAddressForMetricsThatIsTakenIsSaid(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	out, err := command(t, "PINBOARD_PASSPORT="+document, "REDIS_URL=memory:", "PORT=0", "PINBOARD_METRICS_ADDR="+taken.Addr().String()).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "PINBOARD_METRICS_ADDR: ")
	require.Contains(t, string(out), "address already in use")
}
