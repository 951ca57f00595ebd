package pinboard_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pinboard-go/pinboard"
	"github.com/pinboard-go/pinboard/passport"
	"github.com/pinboard-go/pinboard/worker"
)

// A worker that calls pinboard at a wrong path is told by what answers there that it is
// not allowed, or that there is nothing; its log points at the URL, not at its token.
func TestAWorkersLogTellsAWrongPathFromAWrongToken(t *testing.T) {
	t.Parallel()
	const policy = `{"providers": [{"type": "staticToken", "id": "pinboard", "keys": [
		{"name": "worker", "token": "planted-worker-1", "scopes": ["pinboard:worker"],
		 "claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["*"]}}},
		{"name": "viewer", "token": "planted-viewer-1", "scopes": ["pinboard:operator"]}]}],
		"namespaces": {"/open": {"allow": "anonymous"}, "/known": {"allow": "authenticated"}}}`
	pass, err := passport.Parse([]byte(policy), os.LookupEnv)
	require.NoError(t, err)
	pb, err := pinboard.New(pinboard.Options{Passport: pass, Store: pinboard.MemoryStore()})
	require.NoError(t, err)
	defer func() { require.NoError(t, pb.Shutdown(t.Context())) }()
	below := http.NewServeMux()
	below.Handle("/pins/", http.StripPrefix("/pins", pb))
	forgotten := http.NewServeMux()
	forgotten.Handle("/pins/", pb)

	for name, tc := range map[string]struct {
		handler http.Handler
		path    string
		token   worker.Token
		status  int64
		hint    bool
	}{
		"StripPrefix forgotten":       {forgotten, "/pins", "planted-worker-1", 403, true},
		"a base path too many":        {pb, "/pins", "planted-worker-1", 403, true},
		"the same, a wrong token":     {pb, "/known", "planted-other-1", 401, true},
		"the same, an open namespace": {pb, "/open", "planted-worker-1", 404, true},
		"a base path too few":         {below, "", "planted-worker-1", 404, true},
		"a wrong token":               {below, "/pins", "planted-other-1", 401, false},
		"a token without the scope":   {below, "/pins", "planted-viewer-1", 403, false},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(tc.handler)
			defer server.Close()
			core, logs := observer.New(zap.WarnLevel)
			rejected := make(chan struct{}, 100)
			w, err := worker.New(worker.Options{
				PinboardURL: server.URL + tc.path, Token: tc.token, AdvertiseURL: "http://127.0.0.1:1",
				Logger: zap.New(core, zap.Hooks(func(zapcore.Entry) error { rejected <- struct{}{}; return nil })),
			})
			require.NoError(t, err)
			require.NoError(t, w.Host("/c", func(*worker.Instance) (http.Handler, error) { return http.NotFoundHandler(), nil }))
			require.NoError(t, w.Start())
			<-rejected
			require.NoError(t, w.Shutdown(t.Context()))
			told := logs.All()[0].ContextMap()
			require.Equal(t, tc.status, told["status"], "%s", told)
			require.Equal(t, server.URL+tc.path+"/registry/register", told["url"])
			require.Equal(t, tc.hint, told["hint"] != nil, "%s", told)
		})
	}
}
