package worker

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// A registration claims the ids that live here then. A request that came before
// it, and that a middleware kept for so long, activates nothing afterwards: its
// id may be placed elsewhere.
func TestARequestOfAnEndedSessionActivatesNothing(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]time.Duration{
		"while the worker registers": 4 * time.Second, "behind the registration": 7 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var gate chan struct{}
				h := newHarness(t, Options{}, nil)
				middleware := func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if r.URL.Path == "/checked" {
							<-gate
						}
						next.ServeHTTP(w, r)
					})
				}
				require.NoError(t, h.w.HostWith("/c", HostOptions{Middleware: middleware}, echo))
				gate = make(chan struct{})
				h.start()
				h.get("/c/live")
				fresh, live := h.beginGet("/c/1/checked"), h.beginGet("/c/live/checked")
				losing := h.losing()
				h.pb.on(func(c call) (reply, bool) {
					out, ok := losing(c)
					if c.path == wire.PathRegister {
						out.delay = 3 * time.Second
					}
					return out, ok
				})
				h.after(at)
				require.Equal(t, object{"/c": []any{"live"}}, h.pb.last(t, wire.PathRegister).body["instances"])
				close(gate)
				synctest.Wait()
				refused(t, fresh.rec, wire.RefusalStaleEpoch)
				require.Equal(t, http.StatusOK, live.rec.Code, "what the registration claims is served")
				require.False(t, h.live("/c", "1"))
				h.after(4 * time.Second)
				require.Equal(t, http.StatusOK, h.get("/c/1").Code, "pinboard may place it here")
				h.stop()
			})
		})
	}
}
