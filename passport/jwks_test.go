package passport

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// All times here are virtual: an identity server is asked without a socket.

// forever makes a token outlive every test.
var forever = map[string]any{"exp": 4102444800}

// away is an answer that takes longer than anybody waits.
func away(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// after answers with keys, in a while.
func (s *idp) after(wait time.Duration, keys ...string) {
	s.serve(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(wait):
			_, _ = w.Write([]byte(set(keys...)))
		case <-r.Context().Done():
		}
	})
}

// answers reports what the passport says of a token: known, not known, or not
// to be found out.
func answers(t *testing.T, p *Standard, token string) string {
	t.Helper()
	who, err := p.Identify(t.Context(), ask("/", "Authorization: Bearer "+token))
	switch {
	case err != nil:
		require.Nil(t, who)
		return "not now"
	case who != nil:
		return "known"
	}
	return "refused"
}

func TestKeysAreFetchedWhenFirstNeededAndOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSigner("ES256", "k")
		id, p := bubble(t, s.jwk())
		id.after(2*time.Second, s.jwk())
		for _, token := range []string{"", "opaque", s.token(map[string]any{"iss": "x"}), s.token(map[string]any{"exp": 1})} {
			require.Equal(t, "refused", answers(t, p, token))
		}
		synctest.Wait()
		require.Zero(t, id.asked(), "nothing that needs a key was asked")
		token := s.token(forever)
		began := time.Now()
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() { assert.Equal(t, "known", answers(t, p, token)) })
		}
		group.Wait()
		require.Equal(t, 2*time.Second, time.Since(began))
		require.Equal(t, "known", answers(t, p, token))
		require.Equal(t, 1, id.asked())
	})
}

func TestKeysAreRefreshedBehindTheRequestsBacks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSigner("ES256", "k")
		id, p := bubble(t, s.jwk())
		token := s.token(forever)
		require.Equal(t, "known", answers(t, p, token))
		time.Sleep(5*time.Minute - time.Second)
		require.Equal(t, "known", answers(t, p, token))
		require.Equal(t, 1, id.asked())
		time.Sleep(time.Second)
		id.after(4*time.Second, s.jwk())
		for range 10 {
			began := time.Now()
			require.Equal(t, "known", answers(t, p, token))
			require.Zero(t, time.Since(began), "no request waits")
			synctest.Wait()
			require.Equal(t, 2, id.asked())
		}
		time.Sleep(5 * time.Second)
		require.Equal(t, "known", answers(t, p, token))
		require.Equal(t, 2, id.asked())
	})
}

func TestAKeyThatWasWithdrawnIsRefusedAfterTheNextFetch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old, stays := newSigner("ES256", "old"), newSigner("ES256", "stays")
		id, p := bubble(t, old.jwk(), stays.jwk())
		token := old.token(forever)
		require.Equal(t, "known", answers(t, p, token))
		id.publish(stays.jwk())
		time.Sleep(5 * time.Minute)
		require.Equal(t, "known", answers(t, p, token), "the last one, and it begins the fetch")
		synctest.Wait()
		require.Equal(t, "refused", answers(t, p, token))
		require.Equal(t, "known", answers(t, p, stays.token(forever)))
		time.Sleep(10 * time.Second)
		id.publish()
		require.Equal(t, "known", answers(t, p, stays.token(forever)))
		require.Equal(t, "refused", answers(t, p, newSigner("ES256", "other").token(forever)), "asks anew")
		require.Equal(t, "refused", answers(t, p, stays.token(forever)), "an empty set withdraws all")
	})
}

// Without requests nothing is fetched: the first one after a pause must not be
// let in with a key that was withdrawn hours ago.
func TestAfterAPauseTheServerIsAskedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSigner("ES256", "k")
		id, p := bubble(t, s.jwk())
		token := s.token(forever)
		require.Equal(t, "known", answers(t, p, token))
		time.Sleep(10 * time.Minute)
		id.after(2 * time.Second)
		began := time.Now()
		require.Equal(t, "refused", answers(t, p, token))
		require.Equal(t, 2*time.Second, time.Since(began))
		id.publish(s.jwk())
		time.Sleep(10 * time.Minute)
		require.Equal(t, "known", answers(t, p, token))
		time.Sleep(10 * time.Minute)
		id.serve(away)
		began = time.Now()
		require.Equal(t, "known", answers(t, p, token), "the server is down")
		require.Equal(t, 3*time.Second, time.Since(began))
	})
}

func TestKeysAreKeptForADayWhileTheirServerIsDown(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"slow":   away,
		"failed": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSigner("ES256", "k")
			id, p := bubble(t, s.jwk())
			token := s.token(forever)
			fetched := time.Now()
			require.Equal(t, "known", answers(t, p, token))
			id.serve(answer)
			time.Sleep(5 * time.Minute)
			require.Equal(t, "known", answers(t, p, token))
			time.Sleep(10 * time.Minute)
			for time.Since(fetched) < 24*time.Hour {
				began := time.Now()
				require.Equal(t, "known", answers(t, p, token), name)
				require.Zero(t, time.Since(began), "%s: nobody waits for a server that is down", name)
				time.Sleep(time.Hour)
			}
			require.Equal(t, "not now", answers(t, p, token), name)
			time.Sleep(10 * time.Second)
			id.publish(s.jwk())
			require.Equal(t, "known", answers(t, p, token), name)
		})
	}
}

func TestAServerThatIsDownAtFirstIsTriedAgainSoonAndNotTooOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSigner("ES256", "k")
		id, p := bubble(t)
		id.say(http.StatusServiceUnavailable, "")
		token, began := s.token(forever), time.Now()
		for time.Since(began) < time.Minute {
			require.Equal(t, "not now", answers(t, p, token), "never known, and never refused for good")
			time.Sleep(100 * time.Millisecond)
		}
		require.LessOrEqual(t, id.asked(), 12)
		require.GreaterOrEqual(t, id.asked(), 10)
		id.publish(s.jwk())
		time.Sleep(5 * time.Second)
		require.Equal(t, "known", answers(t, p, token))
	})
}

func TestARequestWaitsForSlowKeysForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSigner("ES256", "k")
		id, p := bubble(t)
		id.after(4*time.Second, s.jwk())
		began := time.Now()
		require.Equal(t, "not now", answers(t, p, s.token(forever)))
		require.Equal(t, 3*time.Second, time.Since(began))
		require.Equal(t, "known", answers(t, p, s.token(forever)), "the fetch has gone on")
		require.Equal(t, 4*time.Second, time.Since(began))
		require.Equal(t, 1, id.asked())
	})
}

func TestAClientThatLeavesDoesNotEndTheFetchOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSigner("ES256", "k")
		id, p := bubble(t)
		id.after(2*time.Second, s.jwk())
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		began := time.Now()
		_, err := p.Identify(ctx, ask("/", "Authorization: Bearer "+s.token(forever)))
		require.Error(t, err)
		require.Equal(t, time.Second, time.Since(began))
		require.Equal(t, "known", answers(t, p, s.token(forever)))
		require.Equal(t, 1, id.asked())
	})
}

func TestAFetchIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSigner("ES256", "k")
		var took time.Duration
		id, p := bubble(t)
		id.serve(func(_ http.ResponseWriter, r *http.Request) {
			began := time.Now()
			<-r.Context().Done()
			took = time.Since(began)
		})
		require.Equal(t, "not now", answers(t, p, s.token(forever)))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Equal(t, 5*time.Second, took)
	})
}

func TestMadeUpKeyIDsCauseNoStorm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSigner("ES256", "k")
		id, p := bubble(t, s.jwk())
		require.Equal(t, "known", answers(t, p, s.token(forever)))
		began := time.Now()
		for i := range 600 {
			var group sync.WaitGroup
			for j := range 3 {
				group.Go(func() {
					evil := signer{"ES256", "evil-" + strconv.Itoa(i*3+j), s.key}
					assert.Equal(t, "refused", answers(t, p, evil.token(forever)))
				})
			}
			group.Wait()
			time.Sleep(100 * time.Millisecond)
		}
		require.Equal(t, time.Minute, time.Since(began))
		require.Equal(t, 1+5, id.asked(), "one in 10 s")
		require.Equal(t, "known", answers(t, p, s.token(forever)))
	})
}

func TestATokenOfANewKeyIsKnownAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old, young := newSigner("ES256", "old"), newSigner("ES256", "young")
		id, p := bubble(t, old.jwk())
		require.Equal(t, "known", answers(t, p, old.token(forever)))
		id.after(time.Second, young.jwk(), old.jwk())
		require.Equal(t, "refused", answers(t, p, young.token(forever)), "within 10 s of the last fetch nobody asks")
		time.Sleep(10 * time.Second)
		began := time.Now()
		var group sync.WaitGroup
		for range 50 {
			group.Go(func() { assert.Equal(t, "known", answers(t, p, young.token(forever))) })
			group.Go(func() { assert.Equal(t, "known", answers(t, p, old.token(forever))) })
		}
		group.Wait()
		require.Equal(t, time.Second, time.Since(began))
		require.Equal(t, 2, id.asked())
	})
}

// Whether its key is published can't be told: that is no reason to send a
// client to the log-in.
func TestAnUnknownKeyIsNotRefusedWhileTheServerIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old, young := newSigner("ES256", "old"), newSigner("ES256", "young")
		id, p := bubble(t, old.jwk())
		require.Equal(t, "known", answers(t, p, old.token(forever)))
		id.say(http.StatusInternalServerError, "")
		time.Sleep(10 * time.Second)
		for range 2 { // once after a fetch, once without
			require.Equal(t, "not now", answers(t, p, young.token(forever)))
			require.Equal(t, "known", answers(t, p, old.token(forever)))
			require.Equal(t, "refused", answers(t, p, signer{"ES256", "old", young.key}.token(forever)), "its key is there")
		}
		require.Equal(t, 2, id.asked())
		id.serve(away)
		time.Sleep(5 * time.Second)
		began := time.Now()
		require.Equal(t, "not now", answers(t, p, young.token(forever)))
		require.Equal(t, 3*time.Second, time.Since(began))
	})
}

func TestAnAnswerThatIsNoKeySetChangesNothing(t *testing.T) {
	t.Parallel()
	s, other := newSigner("ES256", "k"), newSigner("ES256", "other")
	many := make([]string, maxKeys+1)
	for i := range many {
		many[i] = `{}`
	}
	redirect := func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://evil.example.com/", http.StatusFound)
	}
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		says  string
	}{
		"a redirect":         {redirect, "302"},
		"404":                {answer(404, set(other.jwk())), "404"},
		"500":                {answer(500, set(other.jwk())), "500"},
		"204":                {answer(204, ""), "204"},
		"nothing":            {answer(200, ""), "key set"},
		"a page":             {answer(200, "<html>sign in</html>"), "key set"},
		"an error":           {answer(200, `{"error": "x"}`), "key set"},
		"null":               {answer(200, `null`), "key set"},
		"a list":             {answer(200, `[`+other.jwk()+`]`), "key set"},
		"keys that are null": {answer(200, `{"keys": null}`), "key set"},
		"keys in an object":  {answer(200, `{"keys": {"a": `+other.jwk()+`}}`), "key set"},
		"Keys in capitals":   {answer(200, `{"KEYS": [`+other.jwk()+`]}`), "key set"},
		"half of it":         {answer(200, set(other.jwk())[:100]), "key set"},
		"a tail":             {answer(200, set(other.jwk())+"{}"), "key set"},
		"too many":           {answer(200, set(append(many, other.jwk())...)), "100 keys"},
		"giant":              {answer(200, set(other.jwk())+strings.Repeat(" ", maxKeySet)), "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				id, p := bubble(t, s.jwk())
				require.Equal(t, "known", answers(t, p, s.token(forever)))
				time.Sleep(10 * time.Second)
				id.serve(c.serve)
				_, err := p.Identify(t.Context(), ask("/", "Authorization: Bearer "+other.token(forever)))
				require.ErrorContains(t, err, c.says)
				require.Equal(t, 2, id.asked())
				require.Equal(t, "known", answers(t, p, s.token(forever)))
			})
		})
	}
}

// failing is a connection that breaks.
type failing struct{ error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.error }

func TestClosingEndsTheFetchAndKeepsTheKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSigner("ES256", "k")
		id, p := bubble(t, s.jwk())
		require.Equal(t, "known", answers(t, p, s.token(forever)))
		var ended atomic.Bool
		id.serve(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			time.Sleep(time.Second)
			ended.Store(true)
		})
		time.Sleep(5 * time.Minute)
		require.Equal(t, "known", answers(t, p, s.token(forever)))
		synctest.Wait()
		began := time.Now()
		require.NoError(t, p.Close())
		require.True(t, ended.Load())
		require.Equal(t, time.Second, time.Since(began), "it waits for no timeout")
		require.NoError(t, p.Close())
		time.Sleep(10 * time.Minute)
		require.Equal(t, "known", answers(t, p, s.token(forever)))
		require.Equal(t, 2, id.asked())

		id, p = bubble(t, s.jwk())
		require.NoError(t, p.Close())
		require.Equal(t, "not now", answers(t, p, s.token(forever)))
		require.Zero(t, id.asked())

		_, p = bubble(t)
		jwtOf(p).keys.client.Transport = failing{errors.New("broken")}
		_, err := p.Identify(t.Context(), ask("/", "Authorization: Bearer "+s.token(forever)))
		require.ErrorContains(t, err, "broken")
		require.NotContains(t, err.Error(), "jwks.json")
	})
}
