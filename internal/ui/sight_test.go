package ui_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// asked returns how often a path of the registry was asked for.
func (s *site) asked(path string) (n int) {
	for _, seen := range s.seen() {
		if strings.Contains(seen, " /registry/"+path+" ") {
			n++
		}
	}
	return n
}

// hide has the page believe that nobody looks at it, or that somebody does again.
func (p *tab) hide(state string) {
	p.t.Helper()
	ask[bool](p, `(Object.defineProperty(document, "visibilityState", {value: "`+state+`", configurable: true}), document.dispatchEvent(new Event("visibilitychange")))`)
}

// after waits for the page's own clock.
func (p *tab) after(ms string) {
	p.t.Helper()
	ask[bool](p, `(window.since = performance.now(), true)`)
	p.await("time has passed", `performance.now() - window.since > `+ms)
}

func TestAPageThatNobodyLooksAtAsksNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	s.fake(nil)
	p := open(t, newBrowser(t), s.url)
	p.excused = []string{refusedOnce}
	p.signIn(tokenOperator)
	p.awaitFleet()
	p.hide("hidden")
	p.after("1000") // what was under way is done
	before := s.asked("overview")
	m := s.join(10, "/chat")
	p.after("5000")
	require.Equal(t, before, s.asked("overview"))
	p.hide("visible")
	p.awaitState(m, "ready")
	p.wellBehaved(s)
}

// Streams are few, per node and credential: without one the page asks for events, too.
func TestWithoutAStreamEventsComeAllTheSame(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	s.fake(nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 32 {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/registry/events", nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+tokenOperator)
		r.Header.Set("Accept", "text/event-stream")
		res, err := s.server.Client().Do(r)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, res.StatusCode)
		go func() { _, _ = io.Copy(io.Discard, res.Body); _ = res.Body.Close() }()
	}
	p := open(t, newBrowser(t), s.url)
	p.excused = []string{refusedOnce, "503 (Service Unavailable)"}
	p.signIn(tokenOperator)
	p.await("it is up to date", `document.querySelector("#status").textContent === "Updating"`)
	p.goTo("#/events")
	p.await("it has what was before", `document.querySelectorAll("#event-rows li").length === 1`)
	m := s.join(10, "/chat")
	p.await("the event is there", `document.querySelector("#event-rows").textContent.includes("`+strings.TrimPrefix(m.url, "http://")+` registered for /chat")`)
	require.True(t, ask[bool](p, `document.querySelector("#trouble").hidden`))

	cancel() // now there is room
	p.await("it has a stream", `document.body.dataset.fresh === "live"`)
	p.wellBehaved(s)
}
