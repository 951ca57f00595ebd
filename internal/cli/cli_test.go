package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pinboard-go/pinboard"
	"github.com/pinboard-go/pinboard/internal/cli"
	"github.com/pinboard-go/pinboard/passport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const document = `{"providers": [{"type": "staticToken", "id": "p", "keys": [
  {"name": "all", "token": "planted-token-all", "scopes": ["pinboard:worker", "pinboard:operator"],
   "claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["*"]}}},
  {"name": "some", "token": "planted-token-some", "scopes": ["pinboard:operator"], "claims": {"pinboard": {"namespaces": ["/a"]}}},
  {"name": "worker", "token": "planted-token-worker", "scopes": ["pinboard:worker"]}]}],
 "namespaces": {"*": {"allow": "anonymous"}}}`

// site is a pinboard and the environment of who asks it.
type site struct {
	t      *testing.T
	pb     *pinboard.Pinboard
	server *httptest.Server
	env    map[string]string
}

func newSite(t *testing.T) *site {
	t.Helper()
	pass, err := passport.Parse([]byte(document), nil)
	require.NoError(t, err)
	pb, err := pinboard.New(pinboard.Options{Store: pinboard.MemoryStore(), Passport: pass})
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("/base/", http.StripPrefix("/base", pb))
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		require.NoError(t, pb.Shutdown(context.Background()))
		server.Close()
	})
	return &site{t: t, pb: pb, server: server, env: map[string]string{
		"PINBOARD_URL": server.URL + "/base", "PINBOARD_TOKEN": "planted-token-all",
	}}
}

// run runs a command.
func (s *site) run(args ...string) (status int, out, errs string) {
	s.t.Helper()
	var o, e bytes.Buffer
	status = cli.Run(s.t.Context(), args, s.lookup, &o, &e)
	require.NotContains(s.t, o.String()+e.String(), "planted-token")
	require.NotContains(s.t, o.String()+e.String(), "planted-secret")
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	return status, o.String(), e.String()
}

func (s *site) lookup(name string) (string, bool) {
	value, ok := s.env[name]
	return value, ok
}

// good runs a command that has to work, and returns what it says.
func (s *site) good(args ...string) string {
	s.t.Helper()
	status, out, errs := s.run(args...)
	require.Equal(s.t, cli.OK, status, errs)
	return out
}

// value runs a command with -o json and reads what it says.
func (s *site) value(args ...string) (v map[string]any) {
	s.t.Helper()
	require.NoError(s.t, json.Unmarshal([]byte(s.good(append(args, "-o", "json")...)), &v))
	return v
}

// worker registers a worker that has these ids of /a. It is ready, since it has
// beaten, too: that a registration is answered says only that it soon will be.
func (s *site) worker(client string, ids ...string) {
	s.t.Helper()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/_pinned/stats" {
			_, _ = io.WriteString(w, `{"draining":false,"leaseFlaps":0,"instances":[{"connections":2,"tasks":1},{"connections":3,"tasks":0}],`+
				`"process":{"uptimeMs":61000,"rssBytes":10485760}}`)
			return
		}
		_, _ = io.WriteString(w, `{"value":"value"}`)
	}))
	s.t.Cleanup(backend.Close)
	var session struct {
		ID string `json:"sessionId"`
	}
	require.NoError(s.t, json.Unmarshal(s.post("/registry/register", map[string]any{
		"clientId": client, "secret": "planted-secret", "namespaces": []string{"/a", "/b"}, "advertiseUrl": backend.URL, "headroom": 7,
		"draining": false, "challenge": "c", "challengeValue": "value", "instances": map[string][]string{"/a": ids},
	}), &session))
	s.post("/registry/heartbeat", map[string]any{
		"sessionId": session.ID, "headroom": 7, "draining": false, "challenge": "c", "challengeValue": "value",
	})
}

// post tells pinboard as a worker does, and returns its answer.
func (s *site) post(path string, body any) []byte {
	s.t.Helper()
	told, err := json.Marshal(body)
	require.NoError(s.t, err)
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.env["PINBOARD_URL"]+path, bytes.NewReader(told))
	require.NoError(s.t, err)
	r.Header.Set("Authorization", "Bearer planted-token-all")
	res, err := s.server.Client().Do(r)
	require.NoError(s.t, err)
	text, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	require.NoError(s.t, res.Body.Close())
	require.Equal(s.t, http.StatusOK, res.StatusCode, string(text))
	return text
}

// rows splits a table into its cells.
func rows(table string) (cells [][]string) {
	for line := range strings.Lines(table) {
		cells = append(cells, strings.Fields(line))
	}
	return cells
}

func TestTheFleetIsShownInTables(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.worker("one", "x", "y")
	s.worker("two", "z")
	table := rows(s.good("workers"))
	require.Equal(t, []string{"WORKER", "STATE", "HEADROOM", "EPOCH", "ENV", "LEASE", "SINCE", "URL", "NAMESPACES"}, table[0])
	require.Len(t, table, 3)
	o := s.good("overview")
	require.Contains(t, o, "NAMESPACE  PLACEMENTS  WORKERS  READY  HEADROOM\n/a         3           2        2      14\n/b         0           2        2      14\n")
	require.Regexp(t, `one +ready +2 +7 +/a=2 /b=0\n`, o)
	table = rows(s.good("placements"))
	require.Len(t, table, 4)
	require.Equal(t, []string{"NAMESPACE", "ID", "WORKER", "EPOCH", "SINCE", "WHY"}, table[0])
	require.Len(t, rows(s.good("placements", "-w", "one", "-p", "x", "-n", "/a")), 2)
	require.Len(t, rows(s.good("placements", "-n", "/b")), 1)
	w := s.good("where", "/a", "x")
	require.Regexp(t, `worker +one\n`, w)
	require.Regexp(t, `why +listed by the worker as it registered\n`, w)
	require.Regexp(t, `one +false +2 +5 +1 +0 +1m1s +10MiB +-\n`, s.good("stats", "one"))
	require.Len(t, rows(s.good("stats")), 3)
	require.Regexp(t, `quarantineMs +\d+\n`, s.good("health"))
}

func TestProgramsGetTheAnswersAsTheyAre(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.worker("one", "x", "y")
	require.Len(t, s.value("workers")["workers"], 1)
	require.InDelta(t, 2, s.value("overview")["placements"], 0)
	require.Equal(t, "one", s.value("where", "/a", "y")["clientId"])
	require.Contains(t, s.value("stats"), "one")
	require.Contains(t, s.value("health"), "resolves")
	require.Len(t, s.value("placements")["placements"], 2)
	require.Equal(t, map[string]any{"placements": []any{}}, s.value("placements", "-p", "nothing"))
	require.Equal(t, map[string]any{"events": []any{}}, s.value("events", "-kind", "none"))
	require.Equal(t, true, s.value("drain", "one")["draining"])
	require.Equal(t, false, s.value("undrain", "one")["draining"])
	require.Equal(t, true, s.value("wind-down", "/a", "x")["queued"])
}

func TestPlacementsAreWalkedToTheLimit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ids := make([]string, 2500)
	for i := range ids {
		ids[i] = fmt.Sprintf("id-%04d", i)
	}
	s.worker("one", ids...)
	require.Len(t, s.value("placements", "-limit", "0")["placements"], 2500)
	require.Len(t, s.value("placements", "-limit", "0", "-p", "id-1")["placements"], 1000)
	status, out, errs := s.run("placements")
	require.Equal(t, cli.OK, status)
	require.Len(t, rows(out), 101)
	require.Contains(t, errs, "there may be more than 100")
	status, out, errs = s.run("placements", "-limit", "2501")
	require.Equal(t, cli.OK, status)
	require.Len(t, rows(out), 2501)
	require.Empty(t, errs)
}

func TestWorkersAreDrainedAndInstancesWoundDown(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.worker("one", "x")
	require.Equal(t, "one drains\n", s.good("drain", "one"))
	require.Regexp(t, `one +draining `, s.good("workers"))
	require.Regexp(t, `^one drains, for at most (60|59) s\n$`, s.good("drain", "-deadline", "1m", "one"))
	require.Regexp(t, `one +draining\((60|59)s\) `, s.good("workers"))
	require.Equal(t, "one takes new ids\n", s.good("undrain", "one"))
	require.Regexp(t, `one +ready `, s.good("workers"))
	require.Contains(t, s.good("wind-down", "/a", "x", "--deadline", "20s"), "next heartbeat")
	s.good("wind-down", "/a", "x", "-revoke")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		out := s.good("events")
		assert.Regexp(c, `(?s)registered.*drained.*drained.*by=operator deadline=1m0s.*undrained.*wind_down +/a/x .*deadline=20s.*wind_down +/a/x .*detail=revoked`, out)
	}, 5*time.Second, time.Millisecond)
}

func TestTheExitStatusTellsWhatWentWrong(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.worker("one", "x")
	for line, want := range map[string]int{
		"help": 0, "workers -h": 0, "-h": 0, "": 0,
		"nothing": 2, "workers more": 2, "where /a": 2, "where /a x y": 2, "workers -o yaml": 2, "workers -x": 2, "drain": 2, "drain one -deadline soon": 2,
		"drain one -deadline -5s": 2, "placements -limit -1": 2, "events -limit x": 2, "wind-down /a x -revoke -deadline 5s": 2,
		"where /a nobody": 3, "where /c x": 3, "drain nobody": 3, "wind-down /a nobody": 3, "stats nobody": 3,
		"where a x": 1, "placements -n a": 1, // what the pinboard finds malformed
	} {
		status, out, errs := s.run(strings.Fields(line)...)
		require.Equal(t, want, status, line)
		require.Equal(t, want == 0, errs == "", line)
		require.Equal(t, want == 0, out != "", line)
	}
	s.env["PINBOARD_TOKEN"] = "planted-token-some"
	for line, want := range map[string]int{"where /a x": 0, "where /b x": 3, "placements -n /b": 3, "events -n /b": 3, "events -f -n /b": 3, "drain one": 4} {
		status, _, errs := s.run(strings.Fields(line)...)
		require.Equal(t, want, status, "%s: %s", line, errs)
	}
	for token, says := range map[string]string{"planted-token-worker": "scope pinboard:operator", "planted-token-unknown": "PINBOARD_TOKEN is not known there"} {
		s.env["PINBOARD_TOKEN"] = token
		for _, line := range []string{"workers", "events -f", "drain one"} {
			status, out, errs := s.run(strings.Fields(line)...)
			require.Equal(t, cli.Denied, status, line)
			require.Empty(t, out)
			require.Contains(t, errs, says)
		}
	}
}

func TestTheEnvironmentSaysWhereToAskAndAsWhom(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	good := s.env
	for _, tc := range []struct{ name, value, says string }{
		{"PINBOARD_URL", "", "PINBOARD_URL is not set"},
		{"PINBOARD_URL", "pinboard.example", "PINBOARD_URL must be"},
		{"PINBOARD_URL", "ftp://pinboard.example", "PINBOARD_URL must be"},
		{"PINBOARD_URL", "https://user:planted-token-x@pinboard.example", "PINBOARD_URL must be"},
		{"PINBOARD_URL", "https://pinboard.example?token=planted-token-x", "PINBOARD_URL must be"},
		{"PINBOARD_URL", "http://planted-token-x%zz", "PINBOARD_URL must be"},
		{"PINBOARD_TOKEN", "", "PINBOARD_TOKEN is not set"},
		{"PINBOARD_TOKEN", "planted-token-all\r\nX: y", "PINBOARD_TOKEN must be"},
	} {
		s.env = map[string]string{"PINBOARD_URL": good["PINBOARD_URL"], "PINBOARD_TOKEN": good["PINBOARD_TOKEN"], tc.name: tc.value}
		status, out, errs := s.run("workers")
		require.Equal(t, cli.Usage, status, tc)
		require.Empty(t, out)
		require.Contains(t, errs, tc.says)
	}
}

func TestWhatIsNoPinboardIsAFailure(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var mu sync.Mutex
	tokens := 0
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		tokens++
	}))
	t.Cleanup(elsewhere.Close)
	for answer, says := range map[string]string{
		"html": "is there a pinboard at PINBOARD_URL?", "404": "status 404 without an error of pinboard's", "redirect": "set PINBOARD_URL to where it leads",
		"503": "the store does not answer", "cut": "read the answer",
	} {
		fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch answer {
			case "html":
				_, _ = io.WriteString(w, "<html>planted-token-all</html>")
			case "404":
				http.NotFound(w, r)
			case "redirect":
				http.Redirect(w, r, elsewhere.URL, http.StatusFound)
			case "503":
				w.WriteHeader(503)
				_, _ = io.WriteString(w, `{"error":"the store does not answer"}`)
			case "cut":
				w.Header().Set("Content-Length", "100")
				_, _ = io.WriteString(w, "{")
			}
		}))
		s.env["PINBOARD_URL"] = fake.URL
		status, out, errs := s.run("workers")
		require.Equal(t, cli.Failed, status, answer)
		require.Empty(t, out)
		require.Contains(t, errs, says)
		fake.Close()
	}
	status, _, errs := s.run("workers") // nobody listens there any more
	require.Equal(t, cli.Failed, status)
	require.Contains(t, errs, "does not answer")
	require.Zero(t, tokens)
}

// Workers and clients choose some of the texts; a terminal must not obey them.
func TestNoControlCharactersReachTheTerminal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"workers":[{"clientId":"a\u001b[2Jb\nc\td\u009be","namespaces":["/\u202ea"]}],"x":{"error":"\u001b[2J"}}`)
	}))
	t.Cleanup(fake.Close)
	s.env["PINBOARD_URL"] = fake.URL
	for _, command := range []string{"workers", "stats"} {
		out := s.good(command)
		require.NotContains(t, strings.ReplaceAll(out, "\n", ""), "\x1b")
		require.NotRegexp(t, "[\x00-\x09\x0b-\x1f\u0080-\u009f\u202e]", out)
	}
	require.Len(t, rows(s.good("workers")), 2)
}
