package upstream

import (
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// tardy is a body that is long in coming.
type tardy struct {
	io.Reader
	after time.Duration
}

func (d *tardy) Read(p []byte) (int, error) {
	time.Sleep(d.after)
	d.after = 0
	return d.Reader.Read(p)
}

// By then the worker may have forgotten that the id is not its own any more.
func TestAHeadThatWaitsForItsBodyIsNotSentTooLate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		until, body time.Duration
		sent        bool
	}{
		{until: headDelay - 1, body: time.Second},
		{until: headDelay + 1, body: time.Second, sent: true},
		{until: time.Millisecond, body: time.Millisecond},
		{until: time.Millisecond, body: 0, sent: true},
	} {
		for _, reused := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				var heads int
				w := newMemoryWorker(t, func(p *peer) {
					for head := p.head(); head != ""; head = p.head() {
						heads++
						if _, _, err := p.body(head); err != nil {
							return
						}
						p.ok("")
					}
				})
				pool := w.pool()
				if reused {
					_, err := do(t.Context(), pool, w.request("GET", "/"))
					require.NoError(t, err)
					heads = 0
				}
				r := w.post("/", "hi")
				r.Rewind = func() (io.Reader, error) { return nil, errors.New("again") }
				r.Body = &tardy{Reader: strings.NewReader("hi"), after: c.body}
				began := time.Now()
				r.Until = began.Add(c.until)
				_, err := do(t.Context(), pool, r)
				if c.sent {
					require.NoError(t, err)
					require.Equal(t, 1, heads)
					return
				}
				require.ErrorIs(t, err, ErrTooLate)
				require.False(t, failure(t, err).Sent)
				require.LessOrEqual(t, time.Since(began), headDelay, "nothing is waited for")
				time.Sleep(time.Minute)
				require.Zero(t, heads)
				requireUnused(t, pool)
			})
		}
	}
}

// renewals makes fields that say how often they were made.
type renewals struct {
	made int
	err  error
}

func (r *renewals) Renew() ([]byte, error) {
	r.made++
	fields, _ := AppendField(nil, "Made", strconv.Itoa(r.made))
	return fields, r.err
}

func TestFieldsAreMadeAnewWhereTheRequestHasWaited(t *testing.T) {
	t.Parallel()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		w := start(t, func(p *peer) {
			for head := p.head(); head != ""; head = p.head() {
				if strings.Contains(head, "/ends") && p.n == 0 {
					return
				}
				_, made, _ := strings.Cut(head, "\r\nMade: ")
				made, _, _ = strings.Cut(made, "\r\n")
				p.ok(made)
			}
		})
		pool := w.pool()
		made := func(target string) string {
			r := w.request("GET", target)
			r.Fields, _ = AppendField(nil, "Made", "0")
			r.Renewer = &renewals{}
			g, err := do(t.Context(), pool, r)
			require.NoError(t, err)
			return g.body
		}
		require.Equal(t, "1", made("/"), "a connection was made")
		require.Equal(t, "0", made("/"), "there was one")
		require.Equal(t, "1", made("/ends"), "there was one, and then there was none")
		r, planted := w.request("GET", "/"), errors.New("planted")
		r.Renewer = &renewals{err: planted}
		fresh := w.pool()
		_, err := do(t.Context(), fresh, r)
		require.ErrorIs(t, err, planted)
		require.False(t, failure(t, err).Sent)
		requireIdle(t, fresh, 1)
	})
}
