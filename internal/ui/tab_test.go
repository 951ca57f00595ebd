package ui_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/browsertest"
)

// patience is when a condition that a page was to fulfil counts as never coming.
const patience = time.Minute

// watchful is run before the page's own scripts: it notes what the page's policy
// had to forbid.
const watchful = `addEventListener("securitypolicyviolation", (e) => console.error("policy: " + e.violatedDirective + " " + e.blockedURI))`

// tab is a page in a browser.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	faults   []string // what its console complains about
	requests []string // URLs
	excused  []string // parts of faults that are no faults
}

func newBrowser(t *testing.T) context.Context {
	t.Helper()
	return browsertest.New(t, patience)
}

// open opens the page, which shares no storage with others.
func open(t *testing.T, browser context.Context, url string) *tab {
	t.Helper()
	return openAt(t, browser, url, "")
}

func openAt(t *testing.T, browser context.Context, url, hash string) *tab {
	t.Helper()
	p := blank(t, browser)
	p.visit(url + "/registry/ui" + hash)
	return p
}

func (p *tab) visit(url string) {
	p.t.Helper()
	p.do(chromedp.Navigate(url))
}

func blank(t *testing.T, browser context.Context) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	p := &tab{t: t, ctx: ctx}
	require.NoError(t, chromedp.Listen(ctx, p.listen))
	p.do(chromedp.EmulateViewport(1200, 900))
	command(p, network.Enable, network.EnableParams{})
	command(p, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watchful})
	return p
}

func (p *tab) listen(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.URL)
	case *log.EventEntryAdded:
		p.faults = append(p.faults, fmt.Sprint(e.Entry.Level, ": ", e.Entry.Text, " ", e.Entry.URL))
	case *runtime.EventConsoleAPICalled:
		var text strings.Builder
		text.WriteString("console." + string(e.Type))
		for _, arg := range e.Args {
			text.WriteString(" " + string(arg.Value))
		}
		p.faults = append(p.faults, text.String())
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		p.faults = append(p.faults, text)
	}
}

func (p *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	require.NoError(p.t, chromedp.Do(ctx, steps...))
}

// command has the browser do something to the page.
func command[P, R any](p *tab, c cdp.Command[P, R], params P) R {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	answer, err := chromedp.Call(ctx, c, params)
	require.NoError(p.t, err)
	return answer
}

// await waits until an expression is true of the page.
func (p *tab) await(what, expression string) {
	p.t.Helper()
	// At intervals, since no frames are drawn of a page that nobody looks at.
	_, err := chromedp.Run(p.ctx, chromedp.Poll[chromedp.Void](expression,
		chromedp.WithPollingTimeout(patience), chromedp.WithPollingInterval(20*time.Millisecond)))
	if err != nil {
		require.NoError(p.t, err, "the page waits until %s; it shows:\n%s\nits console: %q", what, ask[string](p, "document.body.innerText"), p.faults)
	}
}

// ask returns what an expression comes to in the page.
func ask[T any](p *tab, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(p.t, err, expression)
	return value
}

func (p *tab) text(selector string) string {
	p.t.Helper()
	return ask[string](p, fmt.Sprintf("document.querySelector(%q).innerText", selector))
}

// press has a person press keys, wherever the focus is.
func (p *tab) press(keys string) {
	p.t.Helper()
	p.do(chromedp.KeyEvent(keys))
}

// signIn does so by keyboard: the focus is where the token goes.
func (p *tab) signIn(token string) {
	p.t.Helper()
	p.await("it asks for a token", `document.activeElement.id === "token"`)
	p.press(token + "\r")
}

func (p *tab) awaitFleet() {
	p.t.Helper()
	p.await("it shows the fleet", `!document.querySelector("#main").hidden && document.body.dataset.fresh === "live"`)
}

// goTo follows a link within the page.
func (p *tab) goTo(hash string) {
	p.t.Helper()
	ask[string](p, fmt.Sprintf("location.hash = %q", hash))
}

// row is an expression for the row of a worker, by its address.
func row(m *member) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#worker-rows tr")].find((tr) => tr.querySelector(".title").textContent === %q)`,
		strings.TrimPrefix(m.url, "http://"))
}

// awaitState waits until the worker's row says that.
func (p *tab) awaitState(m *member, state string) {
	p.t.Helper()
	p.await("the worker is "+state, fmt.Sprintf(`%s?.querySelector(".state").textContent.startsWith(%q)`, row(m), state))
}

// dark and phone are how a page is looked at.
func (p *tab) dark() {
	p.t.Helper()
	command(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}},
	})
}

func (p *tab) phone() {
	p.t.Helper()
	p.do(chromedp.EmulateViewport(360, 640, chromedp.EmulateMobile, chromedp.EmulateTouch))
}

// wellBehaved checks what a page must never have done: asked elsewhere, said a
// token in a URL, or tried what its policy forbids.
func (p *tab) wellBehaved(s *site) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	origin, err := url.Parse(s.url)
	require.NoError(p.t, err)
	require.NotEmpty(p.t, p.requests)
	for _, asked := range p.requests {
		u, err := url.Parse(asked)
		require.NoError(p.t, err)
		require.Equal(p.t, origin.Scheme+"://"+origin.Host, u.Scheme+"://"+u.Host, "a request to another origin")
		require.True(p.t, strings.HasPrefix(u.Path, origin.Path+"/registry/"), asked)
		require.NotContains(p.t, asked, "planted-token")
	}
faults:
	for _, fault := range p.faults {
		for _, part := range p.excused {
			if strings.Contains(fault, part) {
				continue faults
			}
		}
		require.Fail(p.t, "the console complains", fault)
	}
}
