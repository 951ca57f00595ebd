package pinboard_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard"
	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/passport"
)

const document = `{"namespaces": {"/counters": {"allow": "anonymous"}}}`

// As the README has it.
func mount(mux *http.ServeMux, server *http.Server, client rueidis.Client, logger *zap.Logger) error {
	// document is JSON, see docs/passport.md; or have a Passport of your own.
	pass, err := passport.Parse([]byte(document), os.LookupEnv)
	if err != nil {
		return err
	}
	pb, err := pinboard.New(pinboard.Options{
		Redis:    client, // yours: never closed; or Store: pinboard.MemoryStore()
		Passport: pass,
		Logger:   logger,
	})
	if err != nil {
		return err
	}
	mux.Handle("/", pb) // below a base path: mux.Handle("/pins/", http.StripPrefix("/pins", pb))
	server.RegisterOnShutdown(func() { _ = pb.Close() })
	return nil
}

func TestTheREADMEMountsAPinboard(t *testing.T) {
	t.Parallel()
	client := redistest.New(t, redistest.Options{}).Client(t)
	mux, server := http.NewServeMux(), &http.Server{}
	require.NoError(t, mount(mux, server, client, zap.NewNop()))
	rec := httptest.NewRecorder()
	mux.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/counters/alice", nil))
	require.Equal(t, http.StatusNotFound, rec.Code, rec.Body.String())
	require.NoError(t, server.Shutdown(context.Background()))
}

// As docs/tracing.md has it.
func continued(pb http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		pb.ServeHTTP(w, r.WithContext(ctx))
	})
}

func TestAHostCanBelieveAllClientsAboutTheirTraces(t *testing.T) {
	t.Parallel()
	var seen trace.SpanContext
	handler := continued(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen = trace.SpanContextFromContext(r.Context())
	}))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	handler.ServeHTTP(httptest.NewRecorder(), r)
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", seen.TraceID().String())
	require.True(t, seen.IsRemote(), "which pinboard takes for the parent of its own")
}
