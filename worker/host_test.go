package worker

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestHost(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		for _, bad := range []string{"", "/", "c", "/a/b", "/_x", "/registry", "/a b"} {
			require.Error(t, h.w.Host(bad, echo), bad)
		}
		require.ErrorContains(t, h.w.Host("/c", echo), "taken")
		require.ErrorContains(t, h.w.Host("/d", nil), "constructor")
		require.NoError(t, h.w.Host("/d", echo))
		h.start()
		require.ErrorContains(t, h.w.Host("/e", echo), "started")
	})
}

func TestHostOptionsThatAreRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, nil, func(t *testing.T, h *harness) {
		err := h.w.HostWith("/c", HostOptions{Env: "blue", IdleTimeout: -1, DetachedTimeout: -1, MaxInstances: -1}, echo)
		for _, field := range []string{`host "/c"`, "Env needs Options.Hostname", "IdleTimeout", "DetachedTimeout", "MaxInstances"} {
			require.ErrorContains(t, err, field)
		}
		none := func(http.Handler) http.Handler { return nil }
		require.ErrorContains(t, h.w.HostWith("/c", HostOptions{Middleware: none}, echo), "Middleware")
		require.NoError(t, h.w.Host("/c", echo), "what was refused has left nothing")
	})
}

func TestTheDeploymentRidesTheRegistration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{Hostname: "Chat.example.", Env: "blue", Takeover: TakeoverWindDown, Epoch: 7}, hosting(echo))
		require.NoError(t, h.w.HostWith("/d", HostOptions{Env: "green"}, echo))
		h.start()
		body := h.pb.last(t, wire.PathRegister).body
		require.Equal(t, "chat.example", body["hostname"])
		require.Equal(t, "blue", body["env"])
		require.Equal(t, object{"/d": "green"}, body["envs"])
		require.Equal(t, "wind_down", body["takeover"])
		require.EqualValues(t, 7, body["epoch"])
		h.stop()

		h = newHarness(t, Options{}, hosting(echo))
		h.start()
		for _, field := range []string{"hostname", "env", "envs", "takeover", "epoch"} {
			require.NotContains(t, h.pb.last(t, wire.PathRegister).body, field)
		}
		h.stop()
	})
}

func TestANamespaceHasItsOwnTimesAndBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{IdleTimeout: time.Minute}, hosting(echo))
		require.NoError(t, h.w.HostWith("/d", HostOptions{IdleTimeout: time.Hour, MaxInstances: 2}, echo))
		require.NoError(t, h.w.HostWith("/e", HostOptions{DetachedTimeout: time.Hour}, serving(
			func(inst *Instance, _ http.ResponseWriter, _ *http.Request) { inst.Go(untilDone) })))
		h.start()
		for _, path := range []string{"/c/1", "/c/2", "/c/3", "/d/1", "/d/2", "/e/1"} {
			require.Equal(t, http.StatusOK, h.get(path).Code, path)
		}
		refused(t, h.get("/d/3"), wire.RefusalCapacity)
		h.after(2 * time.Minute)
		require.Equal(t, http.StatusOK, h.get("/c/4").Code)
		require.False(t, h.live("/c", "1"))
		require.True(t, h.live("/d", "1"))
		h.after(59 * time.Minute)
		require.False(t, h.live("/d", "1"))
		require.False(t, h.live("/e", "1"), "only a task held it")
		require.Equal(t, http.StatusOK, h.get("/d/3").Code, "those that have ended no longer count")
		h.stop()
	})
}

func TestAMiddlewareComesBeforeTheActivation(t *testing.T) {
	t.Parallel()
	type tagKey struct{}
	var seen []string
	middleware := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			namespace, id, ok := TargetFrom(r.Context())
			caller, attested := CallerFrom(r.Context())
			seen = append(seen, namespace+"/"+id+" "+r.URL.Path)
			for name := range r.Header {
				if wire.Reserved(name) {
					seen = append(seen, "saw "+name)
				}
			}
			if !ok || !attested || caller.Account.Subject != "anna" {
				http.Error(w, "not you", http.StatusForbidden)
				return
			}
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tagKey{}, "tagged")))
		})
	}
	host := serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
		tag, _ := r.Context().Value(tagKey{}).(string)
		_, _ = io.WriteString(w, tag+r.URL.Path)
	})
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, nil)
		require.NoError(t, h.w.HostWith("/c", HostOptions{Middleware: middleware}, host))
		h.start()
		require.Equal(t, http.StatusForbidden, h.get("/c/1/a").Code)
		require.False(t, h.live("/c", "1"), "a request that is denied activates nothing")
		require.Zero(t, h.w.Stats().Namespaces["/c"].Activations)
		synctest.Wait()
		require.Equal(t, "100", h.pb.last(t, wire.PathRelease).list(t)[0]["epoch"], "nor does its placement stay")
		anna := func() *httptest.ResponseRecorder {
			r := h.request(http.MethodGet, "/c/1/a%2Fb")
			r.Header.Set(wire.HeaderAttestation, h.mint(attest.Claims{Account: &attest.Account{Subject: "anna"}}))
			return h.do(r)
		}
		refused(t, anna(), wire.RefusalReleasedEpoch)
		h.epoch++
		seen = seen[:1]
		require.Equal(t, "tagged/a/b", anna().Body.String())
		require.Equal(t, []string{"/c/1 /a", "/c/1 /a/b"}, seen)
		require.Equal(t, http.StatusForbidden, h.get("/c/1/a").Code)
		synctest.Wait()
		require.True(t, h.live("/c", "1"))
		require.Len(t, h.pb.to(wire.PathRelease), 1, "somebody else is being served")

		r := h.request(http.MethodGet, "/c/1/a")
		r.Header.Del(wire.HeaderAttestation)
		require.Equal(t, http.StatusForbidden, h.do(r).Code)
		require.Len(t, seen, 3, "nothing that pinboard did not send gets that far")
		h.pb.answer(wire.PathHeartbeat, reply{status: http.StatusServiceUnavailable})
		h.after(16 * time.Second)
		refused(t, h.get("/c/1/a"), wire.RefusalExpired)
		require.Len(t, seen, 3, "nor past the lease")
		h.stop()
	})
}
