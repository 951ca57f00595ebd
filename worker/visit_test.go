package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// The context of a request is one of package context's own to everybody who
// asks it, whenever they begin to ask.
func TestARequestsContextIsLikeAnyOther(t *testing.T) {
	t.Parallel()
	type key struct{}
	own, theirs := errors.New("own"), errors.New("theirs")
	for name, c := range map[string]struct {
		end   func(s *span, client context.CancelCauseFunc)
		err   error
		cause error
	}{
		"not ended":             {func(*span, context.CancelCauseFunc) {}, nil, nil},
		"ended":                 {func(s *span, _ context.CancelCauseFunc) { s.cancel(own) }, context.Canceled, own},
		"over":                  {func(s *span, _ context.CancelCauseFunc) { s.cancel(nil) }, context.Canceled, context.Canceled},
		"ended, then over":      {func(s *span, _ context.CancelCauseFunc) { s.cancel(own); s.cancel(nil) }, context.Canceled, own},
		"the client left":       {func(_ *span, client context.CancelCauseFunc) { client(theirs) }, context.Canceled, theirs},
		"left, then ended":      {func(s *span, client context.CancelCauseFunc) { client(theirs); s.cancel(own) }, context.Canceled, theirs},
		"ended, then left late": {func(s *span, client context.CancelCauseFunc) { _ = s.Done(); s.cancel(own); client(theirs) }, context.Canceled, own},
	} {
		for when, ask := range map[string]func(ctx context.Context) context.Context{
			"asked afterwards": nil,
			"asked before":     func(ctx context.Context) context.Context { _ = ctx.Done(); return ctx },
			"with a child":     func(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, "child") },
			"with a cancel": func(ctx context.Context) context.Context {
				child, cancel := context.WithCancel(ctx)
				context.AfterFunc(ctx, cancel)
				return child
			},
		} {
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					client, leave := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
					defer leave(nil)
					s := &span{Context: client}
					defer s.cancel(nil)
					ctx := context.Context(s)
					if ask != nil {
						ctx = ask(s)
					}
					called := false
					if ask != nil {
						context.AfterFunc(ctx, func() { called = true })
					}
					require.NoError(t, ctx.Err())
					c.end(s, leave)
					synctest.Wait()
					require.Equal(t, c.err, ctx.Err())
					require.Equal(t, c.cause, context.Cause(ctx))
					select {
					case <-ctx.Done():
						require.Error(t, c.err)
					default:
						require.NoError(t, c.err)
					}
					require.Equal(t, ask != nil && c.err != nil, called)
					require.NotNil(t, ctx.Value(key{}))
					require.NoError(t, context.WithoutCancel(ctx).Err())
					_, has := ctx.Deadline()
					require.False(t, has)
				})
			})
		}
	}
}

func TestARequestsContextMayBeAskedByMany(t *testing.T) {
	t.Parallel()
	for range 50 {
		client, leave := context.WithCancel(t.Context())
		s := &span{Context: client}
		var group sync.WaitGroup
		for i := range 6 {
			group.Go(func() {
				switch i {
				case 0:
					s.cancel(errIdle)
				case 1:
					leave()
				case 2:
					_ = s.Value("x")
				case 3:
					_ = s.Err()
				default:
					<-s.Done()
				}
			})
		}
		group.Wait()
		require.ErrorIs(t, s.Err(), context.Canceled)
		leave()
	}
}

// Claims are decoded once for all requests with one attestation; what an
// application gets of them is its own.
func TestCallersShareNothing(t *testing.T) {
	t.Parallel()
	var group sync.WaitGroup
	constructor := serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
		caller, ok := CallerFrom(r.Context())
		again, _ := CallerFrom(context.WithoutCancel(r.Context()))
		a := caller.Account
		if !ok || a != again.Account {
			t.Errorf("one request has one caller: %v, %v", a, again.Account)
		}
		_, _ = fmt.Fprint(w, a.Subject, a.Scopes, a.Claims)
		a.Subject, a.Scopes[0] = "mallory", "admin"
		a.Scopes = append(a.Scopes, "more")
		a.Claims["tenant"] = "b"
		a.Claims["list"].([]any)[0].(map[string]any)["deep"] = true
		delete(a.Claims, "n")
	})
	inBubble(t, Options{}, hosting(constructor), func(t *testing.T, h *harness) {
		h.start()
		token := h.mint(attest.Claims{Account: &attest.Account{
			Subject: "ada", Scopes: []string{"chat"},
			Claims: map[string]any{"tenant": "a", "list": []any{map[string]any{"deep": false}}, "n": 9007199254740993},
		}})
		for range 4 {
			group.Go(func() {
				for range 3 {
					r := h.request(http.MethodGet, "/c/1")
					r.Header.Set(wire.HeaderAttestation, token)
					rec := h.do(r)
					require.Equal(t, `ada [chat] map[list:[map[deep:false]] n:9007199254740993 tenant:a]`,
						strings.Replace(rec.Body.String(), "ada[", "ada [", 1))
				}
			})
		}
		group.Wait()
	})
}

// A middleware may call the next handler more than once, also side by side: each
// time is a request in the instance of its own.
func TestAMiddlewareMayLetARequestInAgain(t *testing.T) {
	t.Parallel()
	var inside int
	var h *harness
	construct := func(inst *Instance) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.w.dir.mu.Lock()
			inside = max(inside, inst.flights.n)
			h.w.dir.mu.Unlock()
			timer := time.NewTimer(time.Second)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-r.Context().Done():
			}
			_, _ = io.WriteString(w, "hello")
		}), nil
	}
	middleware := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var group sync.WaitGroup
			var recs [2]*httptest.ResponseRecorder
			for i := range recs {
				recs[i] = httptest.NewRecorder()
				group.Go(func() { next.ServeHTTP(recs[i], r) })
			}
			group.Wait()
			for _, rec := range recs {
				_, _ = fmt.Fprintf(w, "[%s] ", rec.Body.String())
			}
			next.ServeHTTP(w, r)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		h = newHarness(t, Options{}, nil)
		defer h.stop()
		require.NoError(t, h.w.HostWith("/c", HostOptions{Middleware: middleware}, construct))
		h.start()
		require.Equal(t, "[hello] [hello] hello", h.get("/c/1").Body.String())
		require.Equal(t, 2, inside)
		h.w.dir.mu.Lock()
		left := h.w.dir.instances[key{"/c", "1"}].flights
		h.w.dir.mu.Unlock()
		require.Zero(t, left)
	})
}

// What a middleware has changed stays so, whether it makes a context or not.
func TestAnInstanceGetsTheRequestOfItsMiddleware(t *testing.T) {
	t.Parallel()
	type key struct{}
	seen := make(chan *http.Request, 1)
	construct := serving(func(_ *Instance, _ http.ResponseWriter, r *http.Request) { seen <- r })
	middleware := func(next http.Handler) http.Handler {
		return http.StripPrefix("/api", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("X-User", "ada")
			r.Header.Set("Pinned-By", "the middleware")
			if r.URL.RawQuery != "" {
				r = r.WithContext(context.WithValue(r.Context(), key{}, "value"))
			}
			next.ServeHTTP(w, r)
		}))
	}
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, nil)
		defer h.stop()
		require.NoError(t, h.w.HostWith("/c", HostOptions{Middleware: middleware}, construct))
		h.start()
		for _, query := range []string{"", "?with=context"} {
			require.Equal(t, http.StatusOK, h.get("/c/1/api/a%2Fb"+query).Code)
			r := <-seen
			require.Equal(t, "/a%2Fb", r.URL.EscapedPath())
			require.Equal(t, "ada", r.Header.Get("X-User"))
			require.Equal(t, "the middleware", r.Header.Get("Pinned-By"))
			require.Equal(t, query != "", r.Context().Value(key{}) != nil)
		}
	})
}

func reservedIn(h http.Header) (names []string) {
	for name := range h {
		if wire.Reserved(name) {
			names = append(names, name)
		}
	}
	return names
}

// Whoever serves, the application sees no header of pinboard's own; and where
// the server is the host's, what stands around the worker sees them all, before
// and after.
func TestPinboardsHeadersAreTakenFromTheInstanceAlone(t *testing.T) {
	t.Parallel()
	seen := make(chan *http.Request, 1)
	construct := serving(func(_ *Instance, _ http.ResponseWriter, r *http.Request) { seen <- r })
	inBubble(t, Options{}, hosting(construct), func(t *testing.T, h *harness) {
		h.start()
		for name, handler := range map[string]http.HandlerFunc{"own": h.w.serveOwn, "the host's": h.w.ServeHTTP} {
			r := h.request(http.MethodGet, "/c/1/a%2Fb?q")
			r.Header["pinned-Odd"], r.Header["Accept"] = []string{"x"}, []string{"text/plain"}
			before := r.Header.Clone()
			handler(httptest.NewRecorder(), r)
			inside := <-seen
			require.Empty(t, reservedIn(inside.Header), name)
			require.Equal(t, []string{"text/plain"}, inside.Header["Accept"])
			require.Equal(t, "/a%2Fb", inside.URL.EscapedPath())
			require.Equal(t, "q", inside.URL.RawQuery)
			if name == "the host's" {
				require.Equal(t, before, r.Header)
				require.Equal(t, "/c/1/a%2Fb", r.URL.EscapedPath())
			}
		}
	})
}

func TestAContextShowsNothingOfWhoCalls(t *testing.T) {
	t.Parallel()
	shown := ""
	construct := serving(func(_ *Instance, _ http.ResponseWriter, r *http.Request) {
		shown = fmt.Sprintf("%v, %+v, %#v, %s", r.Context(), r.Context(), r.Context(), context.WithValue(r.Context(), t, "x"))
	})
	inBubble(t, Options{}, hosting(construct), func(t *testing.T, h *harness) {
		h.start()
		r := h.request(http.MethodGet, "/c/1")
		r.Header.Set(wire.HeaderAttestation, h.mint(attest.Claims{Account: &attest.Account{Subject: "ada-of-the-bank"}}))
		h.do(r)
		require.Contains(t, shown, "request for /c/1, request for /c/1, request for /c/1, ")
		require.NotContains(t, shown, "ada-of-the-bank")
	})
}

type nobodys struct{}

func (nobodys) owned() (at time.Duration, yes bool) { return 0, false }
func (nobodys) refused() bool                       { return false }
func (nobodys) complain(string, ...zap.Field)       {}

// However a handler writes, and whatever it does with the error.
func TestNothingIsWrittenBehindARefusalThatCameTooLate(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(r *responder) error{
		"Write":       func(r *responder) error { _, err := r.Write([]byte("answer")); return err },
		"WriteString": func(r *responder) error { _, err := r.WriteString("answer"); return err },
		"ReadFrom":    func(r *responder) error { _, err := r.ReadFrom(strings.NewReader("answer")); return err },
		"FlushError":  func(r *responder) error { return r.FlushError() },
	} {
		for _, times := range []int{1, 2} {
			rec := httptest.NewRecorder()
			r := &responder{ResponseWriter: rec, owner: nobodys{}, tooLate: (*refusal).write}
			for range times {
				r.Header().Set("X-Answer", "answer")
				require.ErrorIs(t, write(r), errLate, name)
			}
			require.Equal(t, http.StatusServiceUnavailable, rec.Code, name)
			require.Equal(t, "the instance was lost while it served the request", detail(t, rec), name)
			require.NotContains(t, fmt.Sprint(rec.Result().Header), "answer", name)
		}
	}
}
