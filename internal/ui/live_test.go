package ui_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

func TestTheListIsLiveWhenWorkersJoinDrainLeaveAndDie(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	first := s.join(812, "/chat")
	p := open(t, newBrowser(t), s.url)
	p.excused = []string{refusedOnce}
	p.signIn(tokenOperator)
	p.awaitFleet()
	p.awaitState(first, "ready")

	second := s.join(1234.5, "/chat", "/docs")
	p.awaitState(second, "ready")
	p.await("it is counted", `document.querySelector("#workers").textContent === "2" && document.querySelector("#ready").textContent === "all ready" &&
		document.querySelector("#headroom").textContent === "2,047"`)
	p.await("it is said", `document.querySelector("#announcements").textContent.includes("registered")`)
	cells := ask[string](p, row(second)+".innerText")
	require.Contains(t, cells, second.client)
	require.Contains(t, cells, "1,235")
	require.Regexp(t, `\b[012]\.\d s\b`, cells, "what is left of its lease")

	owner := map[string]*member{first.url: first, second.url: second}[s.place("/chat/lobby/")]
	p.await("the placement is counted", `document.querySelector("#placements").textContent === "1"`)
	p.await("and in its row", fmt.Sprintf(`%s.querySelector(".namespaces").textContent.includes("/chat 1")`, row(owner)))
	p.await("and drawn", `document.querySelector("#chart svg").getAttribute("aria-label").startsWith("Placements: 1 now, between 0 and 1 ")`)

	s.call("POST", "/registry/drain", tokenOperator, map[string]any{"clientId": first.client, "deadline": 3600})
	p.awaitState(first, "draining 60 min left")
	p.await("it is counted", `document.querySelector("#ready").textContent === "1 ready"`)
	s.call("POST", "/registry/undrain", tokenOperator, map[string]any{"clientId": first.client})
	p.awaitState(first, "ready")

	second.mute.Store(true)
	p.awaitState(second, "lease lapsed")
	require.True(t, ask[bool](p, row(second)+`.classList.contains("past") && `+row(second)+`.querySelector("button").hidden`))
	first.stop()
	p.awaitState(first, "left")
	p.await("nobody is left", `document.querySelector("#workers").textContent === "0"`)
	p.wellBehaved(s)
}

// A worker that a deployment of a higher epoch displaces is shown as what it is.
func TestADisplacedWorkerIsShownAsSuperseded(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	old := s.join(10, "/docs")
	p := open(t, newBrowser(t), s.url)
	p.excused = []string{refusedOnce}
	p.signIn(tokenOperator)
	p.awaitFleet()
	p.awaitState(old, "ready")
	s.fake(map[string]any{"epoch": 7})
	p.awaitState(old, "superseded")
	p.wellBehaved(s)
}

// takesOver has the lobby's owner fall silent, waits until the next one has it, and
// reports whether it was moved: if the clean-up comes before a request does, the owner's
// row is gone, and the id is placed as one that nobody has had.
func (s *site) takesOver(next, owner *member) (moved bool) {
	s.t.Helper()
	owner.mute.Store(true)
	require.Eventually(s.t, func() bool { return s.place("/chat/lobby/") == next.url }, patience, lease/20, "the id has another owner")
	status, text := s.call(http.MethodGet, "/registry/placement?namespace=/chat&id=lobby", tokenOperator, nil)
	require.Equal(s.t, http.StatusOK, status, text)
	return strings.Contains(text, `"cause":"failover"`)
}

func TestTheEventStreamShowsAMoveAndLeadsToTheIdAndItsWorkers(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	first := s.join(10, "/chat")
	require.Equal(t, first.url, s.place("/chat/lobby/"))
	p := open(t, newBrowser(t), s.url)
	p.excused = []string{refusedOnce}
	p.signIn(tokenOperator)
	p.awaitFleet()
	p.do(chromedp.Click("#to-events"))
	const newest = `document.querySelector("#event-rows li")`
	p.await("it has what was before", `document.querySelectorAll("#event-rows li").length > 1`)

	second := s.join(10, "/chat")
	for !s.takesOver(second, first) { // then it comes again for the next one
		first, second = second, s.join(10, "/chat")
	}
	p.await("the move is there", `[...document.querySelectorAll("#event-rows li")].some((li) => li.querySelector(".kind").textContent === "failover")`)
	const move = `[...document.querySelectorAll("#event-rows li")].find((li) => li.querySelector(".kind").textContent === "failover")`
	at := func(m *member) string { return strings.TrimPrefix(m.url, "http://") }
	require.Regexp(t, `^/chat/lobby went to `+at(second)+` after the end of `+at(first)+`, epoch \d{16}$`, ask[string](p, move+`.querySelector(".said").textContent`))
	require.True(t, ask[bool](p, `[...document.querySelectorAll("#event-rows time")].every((time) => !Number.isNaN(Date.parse(time.dateTime)))`))

	// Who holds the list reads in peace; what comes meanwhile waits.
	p.do(chromedp.Click("#events-hold"))
	before := ask[string](p, newest+".innerText")
	s.join(10, "/chat")
	p.await("it is told of news", `document.querySelector("#events-news").textContent === "Show 1 new event"`)
	require.Equal(t, before, ask[string](p, newest+".innerText"))
	p.do(chromedp.Click("#events-news"))
	p.await("it shows them", newest+`.querySelector(".kind").textContent === "registered" && document.querySelector("#events-news").hidden`)

	p.do(chromedp.SetValue("#events-kind", "failover"))
	ask[bool](p, `document.querySelector("#events-kind").dispatchEvent(new Event("input"))`)
	p.await("the others are not there", `document.querySelectorAll("#event-rows li").length === 1`)

	ask[string](p, `(`+move+`.querySelector("a").click(), "")`)
	p.await("the id is shown", `!document.querySelector("#ids").hidden && document.querySelector("#one-title").textContent === "/chat/lobby"`)
	require.Contains(t, p.text("#one-facts"), "its owner’s session had ended")
	p.await("with its move", `document.querySelectorAll("#moves li").length === 1`)
	require.Contains(t, p.text("#moves"), "went to "+at(second))
	p.do(chromedp.Click("#one-facts a"))
	p.await("its owner is shown", fmt.Sprintf(`document.querySelector("#worker").open && document.querySelector("#worker-title").textContent === %q`, at(second)))
	p.do(chromedp.Click("#worker-stats"))
	p.await("it says of itself", `document.querySelector("#worker-told").innerText.includes("Process up")`)
	p.wellBehaved(s)
}
