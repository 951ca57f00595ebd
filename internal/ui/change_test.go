package ui_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// tabTo presses the key until the focus is where the expression, of the element
// "e" that has it, says. On the way every stop must be seen, and have a name.
func (p *tab) tabTo(what, expression string) {
	p.t.Helper()
	for range 60 {
		p.press(kb.Tab)
		require.True(p.t, ask[bool](p, `(() => { const e = document.activeElement; const s = getComputedStyle(e);
			return e === document.body || s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2 })()`), "a focus that is not seen, at "+p.focus())
		if ask[bool](p, `((e) => `+expression+`)(document.activeElement)`) {
			return
		}
	}
	require.Fail(p.t, "the key does not lead to "+what)
}

func (p *tab) focus() string { return ask[string](p, "document.activeElement.outerHTML.slice(0, 200)") }

func TestAWorkerIsDrainedAndUndrainedByKeyboardAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	m := s.join(100, "/chat")
	other := s.join(50, "/docs")
	require.Equal(t, m.url, s.place("/chat/lobby/"))
	p := open(t, newBrowser(t), s.url)
	p.excused = []string{refusedOnce}
	p.signIn(tokenOperator)
	p.awaitFleet()
	p.awaitState(m, "ready")
	p.await("the id is counted", `document.querySelector("#placements").textContent === "1"`)
	name := strings.TrimPrefix(m.url, "http://")
	button := fmt.Sprintf(`e.tagName === "BUTTON" && e.getAttribute("aria-label") === "Drain %s"`, name)
	const open = `document.querySelector("#change").open`

	// Escape does nothing but close, and the focus is where it was.
	p.tabTo("the button", button)
	p.press(kb.Enter)
	p.await("it asks", open)
	require.Equal(t, "Drain "+name+"?", p.text("#change-title"))
	said := p.text("#change-text")
	require.Contains(t, said, m.client)
	require.Contains(t, said, "serves /chat and holds 1 id.")
	require.Contains(t, said, "gets no new ids")
	require.Contains(t, said, "No other worker takes new ids of /chat: requests for them will get a 503.")
	require.Equal(t, "change-cancel", ask[string](p, "document.activeElement.id"), "what does no harm comes first")
	for range 8 {
		p.press(kb.Tab)
		require.True(t, ask[bool](p, `document.activeElement === document.body || document.querySelector("#change").contains(document.activeElement)`), "the focus stays in the dialog: "+p.focus())
	}
	p.press(kb.Escape)
	p.await("it is closed", "!"+open)
	require.True(t, ask[bool](p, `((e) => `+button+`)(document.activeElement)`), p.focus())
	require.False(t, s.workers()[0].Draining || s.workers()[1].Draining)

	// With a deadline that is chosen and written by keyboard.
	p.press(kb.Enter)
	p.await("it asks", open)
	p.tabTo("the choice", `e.name === "ending"`)
	p.press(kb.ArrowDown)
	p.tabTo("the deadline", `e.id === "deadline"`)
	p.press("\b\b1.5" + kb.Enter)
	p.await("it says what a deadline is", `document.querySelector("#change-fault").textContent.startsWith("The deadline is a number of seconds") && document.activeElement.id === "deadline"`)
	p.press("\b\b\b600")
	p.tabTo("the last button", `e.id === "change-go"`)
	p.press(kb.Enter)
	p.await("it is closed", "!"+open)
	p.awaitState(m, "draining")
	for _, w := range s.workers() {
		require.Equal(t, w.ClientID == m.client, w.Draining)
		if w.Draining {
			require.NotNil(t, w.DrainDeadline)
			require.InDelta(t, 600, *w.DrainDeadline, float64(patience.Seconds()))
		}
	}
	p.await("it is said aloud", fmt.Sprintf(`document.querySelector("#announcements").textContent.includes("%s drains")`, name))
	require.True(t, ask[bool](p, fmt.Sprintf(`document.activeElement.getAttribute("aria-label") === "Undrain %s"`, name)), "the focus is still on the worker: "+p.focus())

	p.press(kb.Enter)
	p.await("it asks", open)
	require.Contains(t, p.text("#change-text"), "gets new ids again")
	require.True(t, ask[bool](p, `document.querySelector("#endings").hidden`))
	p.tabTo("the last button", `e.id === "change-go"`)
	p.press(kb.Enter)
	p.awaitState(m, "ready")
	for _, w := range s.workers() {
		require.False(t, w.Draining)
	}
	p.awaitState(other, "ready")
	p.wellBehaved(s)
}

func TestAnInstanceIsAskedToCloseAndItsWorkerHears(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	m := s.join(100, "/chat")
	s.place("/chat/lobby/")
	p := openAt(t, newBrowser(t), s.url, "#/ids?namespace=/chat&id=lobby")
	p.excused = []string{refusedOnce, "404 (Not Found)"}
	p.signIn(tokenOperator)
	p.await("the id is there", `!document.querySelector("#one-acts").hidden`)
	p.tabTo("the button", `e.id === "wind-down"`)
	p.press(kb.Enter)
	p.await("it asks", `document.querySelector("#change").open`)
	require.Equal(t, "Close /chat/lobby?", p.text("#change-title"))
	require.Contains(t, p.text("#change-text"), strings.TrimPrefix(m.url, "http://")+" is asked to close this instance")
	require.True(t, ask[bool](p, `document.querySelector("#ending-none").hidden && document.querySelector("#deadline").value === "30"`), "there is no other choice")
	p.tabTo("the last button", `e.id === "change-go"`)
	p.press(kb.Enter)
	p.await("it is not placed any more", `!document.querySelector("#one-missing").hidden`)
	require.Contains(t, p.text("#moves"), "was asked to close, within 30 s")
	require.Contains(t, p.focus(), `id="one-title"`, "the button is gone, and the focus is not lost")
	p.wellBehaved(s)
}

// Two answers that mean different things: not done, and not known whether done.
func TestAChangeThatFailsSaysSoAndCanBeTriedAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	m := s.join(100, "/chat")
	p := open(t, newBrowser(t), s.url)
	p.excused = []string{refusedOnce, "ERR_", "404 (Not Found)"}
	p.signIn(tokenOperator)
	p.awaitFleet()
	p.awaitState(m, "ready")
	ask[string](p, `(`+row(m)+`.querySelector("button").click(), "")`)
	p.await("it asks", `document.querySelector("#change").open`)
	s.lose()
	p.tabTo("the last button", `e.id === "change-go"`)
	p.press(kb.Enter)
	p.await("it says that it does not know", `document.querySelector("#change-fault").textContent.includes("Whether it was done is not known")`)
	s.find()
	p.press(kb.Enter)
	p.await("it is closed", `!document.querySelector("#change").open`)
	p.awaitState(m, "draining")
	p.wellBehaved(s)
}

// Browsers tell that a dialog was closed some time later: then it may be open
// again, for something else.
func TestADialogThatIsOpenedAgainAtOnceIsTheNewOne(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	s.fake(nil)
	p := openAt(t, newBrowser(t), s.url, "#/fleet?worker=fake")
	p.excused = []string{refusedOnce}
	p.signIn(tokenOperator)
	p.await("details are open", `document.querySelector("#worker").open`)
	ask[bool](p, `(document.querySelector("#worker").close(), dispatchEvent(new HashChangeEvent("hashchange")), true)`)
	p.await("they are open again", `document.querySelector("#worker").open && document.querySelector("#worker-title").textContent.startsWith("127.0.0.1:")`)
	ask[bool](p, `(document.querySelector("#worker").close(), true)`)
	p.await("they are closed", `!location.hash.includes("worker")`)

	ask[bool](p, `((button, dialog) => { button.click(); dialog.close(); button.click(); return true })(document.querySelector("#worker-rows button"), document.querySelector("#change"))`)
	p.after("100") // the browser has told
	require.True(t, ask[bool](p, `document.querySelector("#change").open`))
	require.Contains(t, p.text("#change-title"), "Drain 127.0.0.1:")
	ask[bool](p, `(document.querySelector("#change-go").click(), true)`)
	p.await("it is drained", `document.querySelector("#worker-rows .state").textContent.startsWith("draining")`)
	p.wellBehaved(s)
}
