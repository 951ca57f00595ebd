package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/examples/internal/fleet"
	"github.com/pinboard-go/pinboard/internal/browsertest"
)

// patience is when a condition that a page was to fulfil counts as never coming.
const patience = time.Minute

// tab is a page in a browser.
type tab struct {
	t    *testing.T
	name string
	ctx  context.Context

	mu     sync.Mutex
	faults []string // what its console complains about
}

// newTab opens a page that shares no storage with others.
func newTab(t *testing.T, browser context.Context, name, url string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	p := &tab{t: t, name: name, ctx: ctx}
	require.NoError(t, chromedp.Listen(ctx, p.listen))
	p.do(chromedp.Navigate(url))
	p.await("it is live", `document.body.dataset.state === "live"`)
	p.do(chromedp.SetValue("#name", name))
	return p
}

func (p *tab) listen(event any) {
	fault := ""
	switch e := event.(type) {
	case *log.EventEntryAdded:
		fault = fmt.Sprint(e.Entry.Level, ": ", e.Entry.Text, " ", e.Entry.URL)
	case *runtime.EventConsoleAPICalled:
		fault = fmt.Sprint("console.", e.Type)
	case *runtime.EventExceptionThrown:
		fault = e.ExceptionDetails.Text
	}
	// While the room moves, an attempt to connect may fail.
	if fault == "" || strings.Contains(fault, "WebSocket connection to 'ws://") {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, fault)
}

func (p *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	require.NoError(p.t, chromedp.Do(ctx, steps...), p.name)
}

// await waits until an expression is true of the page.
func (p *tab) await(what, expression string) {
	p.t.Helper()
	// At intervals, since no frames are drawn of a page that nobody looks at.
	_, err := chromedp.Run(p.ctx, chromedp.Poll[chromedp.Void](expression,
		chromedp.WithPollingTimeout(patience), chromedp.WithPollingInterval(20*time.Millisecond)))
	if err != nil {
		require.NoError(p.t, err, "%s waits until %s; it shows:\n%s", p.name, what, p.text("body"))
	}
}

func (p *tab) text(selector string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.TextContent(selector))
	require.NoError(p.t, err, p.name)
	return text
}

// say writes as a person does: with the keyboard only.
func (p *tab) say(text string) {
	p.t.Helper()
	p.do(chromedp.SendKeys("#text", text+kb.Enter))
}

func (p *tab) awaitMessage(by *tab, text string) {
	p.t.Helper()
	p.await(by.name+"'s message is there", fmt.Sprintf(`[...document.querySelectorAll("#log .said")].some(m =>
		m.querySelector(".by bdi").textContent === %q && m.querySelector(".text").textContent === %q)`, by.name, text))
}

func TestTwoBrowsersShareARoomAndFollowItToAnotherWorker(t *testing.T) {
	t.Parallel()
	f, err := fleet.Start(t.Context(), fleet.Options{Namespace: namespace, Instances: newRoom})
	require.NoError(t, err)
	defer f.Stop()
	require.NoError(t, f.AwaitAnswer(t.Context(), "/chat/lobby/"))
	browser := browsertest.New(t, patience)
	ada := newTab(t, browser, "Ada", f.URL+"/chat/lobby") // redirected
	bob := newTab(t, browser, "Bob", f.URL+"/chat/lobby/")
	tabs := []*tab{ada, bob}
	both := func(do func(p *tab)) {
		for _, p := range tabs {
			do(p)
		}
	}

	require.Equal(t, "lobby", ada.text("#room"))
	both(func(p *tab) { p.await("both are counted", `document.querySelector("#members").textContent === "2"`) })
	const markup = `<script>document.title = "broken"</script><img src=x onerror='document.title = "broken"'><b>bold</b>`
	ada.say("Hello, Bob")
	bob.say(markup)
	both(func(p *tab) {
		p.awaitMessage(ada, "Hello, Bob")
		p.awaitMessage(bob, markup)
		p.await("nothing of it ran", `document.title === "#lobby" && !document.querySelector("#log :is(script, img, b)")`)
	})

	first := ada.text("#worker")
	require.Equal(t, first, bob.text("#worker"))
	epoch := ada.text("#epoch")
	f.StopWorker(first)
	both(func(p *tab) {
		p.await("it is live elsewhere", fmt.Sprintf(`document.body.dataset.state === "live" &&
			document.querySelector("#worker").textContent !== %q`, first))
		require.Greater(t, p.text("#epoch"), epoch, "epochs have as many digits, and rise")
		require.Contains(t, p.text(".note"), "The room moved from "+first+" to "+p.text("#worker"))
		p.awaitMessage(ada, "Hello, Bob") // the page keeps what the room does not
	})
	bob.say("Still here?")
	ada.say("Yes")
	both(func(p *tab) {
		p.awaitMessage(bob, "Still here?")
		p.awaitMessage(ada, "Yes")
		p.mu.Lock()
		defer p.mu.Unlock()
		require.Empty(t, p.faults, "%s's console", p.name)
	})
}
