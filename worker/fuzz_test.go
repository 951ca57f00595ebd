package worker

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// fuzzed makes a worker that no pinboard is asked for. Its loop does not run.
func fuzzed(t *testing.T) *Worker {
	t.Helper()
	pb := &fakePinboard{}
	w, err := build(Options{
		PinboardURL: "http://pinboard:8080", Token: "t", AdvertiseURL: "http://worker:8000/base", Transport: pb,
	}, none, systemClock, func() float64 { return 1 })
	require.NoError(t, err)
	pb.worker = w
	require.NoError(t, w.Host("/c", echo))
	t.Cleanup(func() {
		w.reg.mu.Lock()
		w.reg.session.Store(nil) // else the shutdown lingers, for requests on their way
		w.reg.mu.Unlock()
		require.NoError(t, w.Shutdown(context.Background()))
	})
	return w
}

// Whatever a control plane answers, the worker goes on, and acknowledges only
// what it could read.
func FuzzPinboardsAnswers(f *testing.F) {
	for _, seed := range []string{
		`{"sessionId":"s","expiresInMs":15000,"draining":false,"duplicates":[{"ns":"/c","id":"1"},7,{}]}`,
		`{"sessionId":"s","expiresInMs":1e308,"draining":true,"drainDeadline":-1}`,
		`{"expiresInMs":15000,"draining":true,"drainDeadline":1e300,"messages":[{"msgId":"m","type":"wind_down","ns":"/c","id":"1","deadline":5}]}`,
		`{"expiresInMs":"15000","messages":[{"msgId":"a","type":"wind_down","id":"1","deadline":null},{"msgId":"b"},{"msgId":"c","type":"wind_down","deadline":1,"id":"2"}]}`,
		`{"expiresInMs":-1,"messages":{}}`, `[]`, `null`, ``, `{"messages":null,"duplicates":null,"expiresInMs":null}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		w := fuzzed(t)
		a := &answer{status: http.StatusOK}
		if json.Unmarshal([]byte(body), &a.fields) != nil {
			a.fields = nil
		}
		sent := w.clock()
		w.reg.accept(t.Context(), sent, a)
		w.reg.acked(t.Context(), sent, nil, a)
		for id := range w.reg.acks {
			require.NotEmpty(t, id)
		}
		if until := w.Lease().ExpiresAt; !until.IsZero() {
			require.LessOrEqual(t, until.Sub(sent.wall).Hours(), 24.0*31)
		}
		_ = w.Draining()
	})
}

// What reaches an instance is what the path says, raw and decoded alike, and
// nothing unattested does.
func FuzzInstancePaths(f *testing.F) {
	for _, seed := range []string{"/c/1/x", "/base/c/1", "/c/1/%2F?a=1;b=%zz", "/%63/1/", "/c/", "/c/../1", "//c/1", "/c/1//", "/c/%31/x", "/_pinned/live", "/c/1/%2525", "/c/1/a%25?%25", "*"} {
		f.Add(seed, "7")
	}
	f.Fuzz(func(t *testing.T, target, epoch string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || !strings.HasPrefix(target, "/") {
			return
		}
		w := fuzzed(t)
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.URL, r.RequestURI = u, target
		r.Header[wire.HeaderEpoch] = []string{epoch}
		rec := httptest.NewRecorder()
		w.ServeHTTP(rec, r)
		require.NotEqual(t, http.StatusInternalServerError, rec.Code)
		require.Equal(t, belowBase(r, w.base, false), belowBase(r, w.base, true), "found in the target as it was sent")
		namespace, id, rest, ok := splitPath(belowBase(r, w.base, false))
		if ok {
			require.True(t, strings.HasPrefix(namespace, "/"))
			require.NotContains(t, id, "/")
			require.True(t, strings.HasPrefix(rest, "/"))
			path := u.EscapedPath()
			require.True(t, strings.HasSuffix(path, id+rest) || strings.HasSuffix(path+"/", id+rest), "%q of %q", id+rest, target)
		}
		if n, ok := placementEpoch(r.Header[wire.HeaderEpoch]); ok {
			require.GreaterOrEqual(t, n, int64(0))
		}
	})
}
