package ui_test

import (
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard"
	"github.com/pinboard-go/pinboard/internal/redistest"
)

const stale = `!document.querySelector("#trouble").hidden && document.querySelector("#main").hasAttribute("data-stale") && document.body.dataset.fresh === "trouble"`

func TestALostConnectionIsShownAndItsEnd(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	m := s.join(100, "/chat")
	p := open(t, newBrowser(t), s.url)
	p.excused = []string{refusedOnce, "ERR_"}
	p.signIn(tokenOperator)
	p.awaitFleet()
	p.awaitState(m, "ready")
	s.lose()
	p.await("it says so", stale)
	require.Equal(t, "Connection lost. The server can’t be reached.", p.text("#why"))
	require.Regexp(t, `^What is shown is from \d\d:\d\d:\d\d, \d+ s ago\. Trying again`, p.text("#age"))
	require.Equal(t, "alert", ask[string](p, `document.querySelector("#why").getAttribute("role")`))
	require.Equal(t, "Not up to date", p.text("#status"))
	require.Equal(t, "grayscale(1)", ask[string](p, `getComputedStyle(document.querySelector("#main")).filter`))
	require.Equal(t, "1", p.text("#workers"), "what is known stays")
	p.await("it tries again less and less often", `Number(document.querySelector("#age").textContent.match(/again in (\d+) s/)?.[1]) > 3`)
	s.find()
	ask[string](p, `(document.querySelector("#try-now").click(), "")`)
	p.await("it is live again", `document.body.dataset.fresh === "live" && document.querySelector("#trouble").hidden && !document.querySelector("#main").hasAttribute("data-stale")`)
	p.await("that is said aloud", `document.querySelector("#announcements").textContent.includes("Connected again")`)
	other := s.join(50, "/docs")
	p.awaitState(other, "ready")
	p.wellBehaved(s)
}

func TestAStoreThatIsAwayIsShownAsThat(t *testing.T) {
	t.Parallel()
	redis := redistest.New(t, redistest.Options{})
	s := newSite(t, siteOptions{store: &pinboard.Options{Redis: redis.Client(t)}})
	m := s.join(100, "/chat")
	p := open(t, newBrowser(t), s.url)
	p.excused = []string{refusedOnce, "503 (Service Unavailable)"}
	p.signIn(tokenOperator)
	p.awaitFleet()
	p.awaitState(m, "ready")
	redis.Freeze()
	p.await("it says so", stale)
	require.Equal(t, "The server can’t answer for now. The store does not answer.", p.text("#why"))
	redis.Thaw()
	p.await("it is live again", `document.body.dataset.fresh === "live"`)

	// Who comes while the store is away is not told that the token was wrong.
	redis.Freeze()
	q := open(t, p.ctx, s.url)
	q.excused = p.excused
	q.signIn(tokenOperator)
	q.await("it says why", `document.querySelector("#sign-in-fault").textContent.includes("the store does not answer")`)
	require.Equal(t, "false", ask[string](q, `document.querySelector("#token").getAttribute("aria-invalid")`))
	redis.Thaw()
	require.Eventually(t, func() bool {
		status, _ := s.call(http.MethodGet, "/registry/overview", tokenOperator, nil)
		return status == http.StatusOK
	}, patience, lease/20)
	q.do(chromedp.Click("#keep-token"), chromedp.Click("#sign-in-go")) // the token is still there
	q.awaitFleet()

	// With a token that is kept, the page comes up by itself when the store is back.
	redis.Freeze()
	q.do(chromedp.Reload())
	q.await("it says that it tries again", `/^The store does not answer\. Trying again in \d+ s\.$/.test(document.querySelector("#opening-fault").textContent)`)
	redis.Thaw()
	q.awaitFleet()
	p.wellBehaved(s)
	q.wellBehaved(s)
}

// Before anybody has signed in, nothing is known of who may come in either.
func TestAPageThatFindsNobodyGoesOnTrying(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	s.fake(nil)
	p := open(t, newBrowser(t), s.url)
	p.excused = []string{refusedOnce, "ERR_"}
	p.await("it asks for a token", `document.activeElement.id === "token"`)
	s.lose()
	p.signIn(tokenOperator)
	p.await("it says why", `document.querySelector("#sign-in-fault").textContent === "The server can’t be reached."`)
	require.False(t, ask[bool](p, `document.querySelector("#sign-in").hidden`))
	s.find()
	p.press("\r")
	p.awaitFleet()
	p.wellBehaved(s)
}
