package ui_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/security"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// Whoever asks with a wrong token is told so by the browser's console, too.
const refusedOnce = "401 (Unauthorized)"

func TestAnOperatorSignsInWithATokenThatIsInNoURL(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	s.join(100, "/chat")
	p := open(t, newBrowser(t), s.url)
	p.excused = []string{refusedOnce, "403 (Forbidden)"}

	p.signIn("no-such-token")
	p.await("it says what is wrong", `document.querySelector("#sign-in-fault").textContent === "This token is not known here."`)
	require.True(t, ask[bool](p, `document.querySelector("#main").hidden && document.activeElement.id === "token" &&
		document.activeElement.getAttribute("aria-invalid") === "true"`))
	p.signIn(tokenClient) // what was there is selected, and written over
	p.await("it says what is missing", `document.querySelector("#sign-in-fault").textContent.includes("lacks the scope pinboard:operator")`)
	p.signIn("naïve")
	p.await("it says what no token is", `document.querySelector("#sign-in-fault").textContent.includes("letters, digits and signs")`)
	p.signIn(tokenOperator)
	p.awaitFleet()
	require.Equal(t, "1", p.text("#workers"))
	require.Equal(t, "fleet-title", ask[string](p, "document.activeElement.id"))

	// It is kept nowhere: who comes back is asked anew.
	require.Equal(t, 0, ask[int](p, "sessionStorage.length + localStorage.length + document.cookie.length"))
	require.Empty(t, ask[string](p, `document.querySelector("#token").value`))
	p.do(chromedp.Reload())
	p.await("it asks again", `document.activeElement.id === "token"`)
	p.press(tokenOperator + kb.Tab + " " + kb.Enter) // keep it, and enter
	p.awaitFleet()
	p.do(chromedp.Reload())
	p.awaitFleet()
	p.do(chromedp.Click("#sign-out"))
	p.await("it asks again", `document.activeElement.id === "token"`)
	require.Equal(t, 0, ask[int](p, "sessionStorage.length"))
	require.Equal(t, "0", ask[string](p, `String(document.querySelectorAll("#worker-rows tr, #event-rows li").length)`))
	p.do(chromedp.Reload())
	p.await("it asks again", `document.activeElement.id === "token"`)

	p.wellBehaved(s)
	for _, seen := range s.seen() {
		require.NotContains(t, seen, "planted-token")
	}
	history := command(p, page.GetNavigationHistory, cdp.Empty{})
	require.NotEmpty(t, history.Entries)
	for _, entry := range history.Entries {
		require.NotContains(t, entry.URL, "planted-token")
	}
}

// A host may know its operators by a cookie. The page is on its origin, and so may
// change things; and all that works below a path of the host's mux, behind TLS.
func TestAHostsOwnSignInIsEnoughBelowABasePathAndBehindTLS(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{base: "/pins", tls: true})
	s.fake(nil)
	p := blank(t, newBrowser(t))
	command(p, security.SetIgnoreCertificateErrors, security.SetIgnoreCertificateErrorsParams{Ignore: true})
	command(p, network.SetCookie, network.SetCookieParams{Name: "host", Value: "operator", URL: s.url, HTTPOnly: new(true), SameSite: network.CookieSameSiteStrict})
	p.visit(s.url + "/registry/ui/")
	p.awaitFleet()
	require.Equal(t, s.url+"/registry/ui", ask[string](p, "location.origin + location.pathname"))
	require.Equal(t, strings.TrimPrefix(s.url, "https://"), p.text("#where"))
	require.True(t, ask[bool](p, `document.querySelector("#sign-out").hidden && document.querySelector("#insecure").hidden`))
	require.Equal(t, "1", p.text("#workers"))

	p.do(chromedp.Click(`#worker-rows button`), chromedp.WaitVisible("#change"), chromedp.Click("#change-go"))
	p.await("it is drained", `document.querySelector("#worker-rows .state").textContent.startsWith("draining")`)
	require.True(t, s.workers()[0].Draining)
	p.wellBehaved(s)
}

// An operator sees what its claims cover; the page shows a refusal as what it is.
func TestAnOperatorOfSomeNamespacesSeesThoseAndIsToldWhatItMayNotDo(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	s.fake(map[string]any{"namespaces": []string{"/docs", "/hidden"}})
	p := open(t, newBrowser(t), s.url)
	p.excused = []string{refusedOnce, "403 (Forbidden)"}
	p.signIn(tokenSome)
	p.awaitFleet()
	require.NotContains(t, ask[string](p, "document.body.textContent"), "/hidden")
	p.do(chromedp.Click(`#worker-rows button`), chromedp.WaitVisible("#change"), chromedp.Click("#change-go"))
	p.await("it says why not", `document.querySelector("#change-fault").textContent === "Not allowed: the worker also serves namespaces outside the credential's claims."`)
	require.True(t, ask[bool](p, `document.querySelector("#change").open`), "so that it can be read")
	require.False(t, s.workers()[0].Draining)
	p.wellBehaved(s)
}

func TestATokenThatIsTakenBackEndsWhatIsShown(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	s.fake(nil)
	p := open(t, newBrowser(t), s.url)
	p.excused = []string{refusedOnce}
	p.signIn(tokenOperator)
	p.awaitFleet()
	s.revoked.Store(true)
	p.await("it asks again", `document.activeElement.id === "token" && document.querySelector("#main").hidden`)
	require.Equal(t, "This token is not known here.", p.text("#sign-in-fault"))
	require.NotContains(t, ask[string](p, `document.querySelector("#worker-rows").textContent`), "fake", "what it showed is not there any more")
	s.revoked.Store(false)
	p.signIn(tokenOperator)
	p.awaitFleet()
	p.wellBehaved(s)
}

// fields fills in a form's fields by their ids.
func (p *tab) fields(values ...string) {
	p.t.Helper()
	for i := 0; i < len(values); i += 2 {
		p.do(chromedp.SetValue("#"+values[i], values[i+1]))
	}
}

func TestAnIdIsFoundByItsNameAndManyByHowTheyBegin(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	m := s.join(100, "/chat")
	for i := range 60 {
		s.place(fmt.Sprintf("/chat/room-%02d/", i))
	}
	s.place("/chat/alone/")
	p := open(t, newBrowser(t), s.url)
	p.excused = []string{refusedOnce, "404 (Not Found)"}
	p.signIn(tokenOperator)
	p.awaitFleet()
	p.do(chromedp.Click("#to-ids"))
	p.await("it shows the view", `!document.querySelector("#ids").hidden && document.activeElement.id === "ids-title"`)

	p.fields("find-namespace", "chat") // the slash goes without saying
	p.do(chromedp.SendKeys("#find-id", "alone"+kb.Enter))
	p.await("it is found", `document.querySelector("#one-title").textContent === "/chat/alone"`)
	facts := p.text("#one-facts")
	require.Contains(t, facts, strings.TrimPrefix(m.url, "http://"))
	require.Contains(t, facts, m.client)
	require.Contains(t, facts, "nobody had it")
	require.Regexp(t, `Epoch\s+\d{16}\s`, facts)
	require.Equal(t, "#/ids?namespace=%2Fchat&id=alone", ask[string](p, "location.hash"), "it can be linked to")

	p.do(chromedp.Click("#find-begins"))
	p.fields("find-id", "room-")
	p.press(kb.Enter)
	const shown = `document.querySelectorAll("#rows tr").length`
	p.await("a page is full", shown+` === 50 && document.querySelector("#rows-told").textContent === "Page 1, 50 ids"`)
	require.True(t, ask[bool](p, `[...document.querySelectorAll("#rows th")].every((th) => /^\/chat\/room-\d\d$/.test(th.textContent))`))
	first := ask[string](p, `document.querySelector("#rows th").textContent`)
	p.do(chromedp.Click("#rows-next"))
	p.await("the rest is there", shown+` === 10 && document.querySelector("#rows-next").disabled`)
	p.do(chromedp.Click("#rows-back"))
	p.await("it goes back", shown+` === 50`)
	require.Equal(t, first, ask[string](p, `document.querySelector("#rows th").textContent`))

	p.goTo("#/ids?" + "namespace=/chat&id=nobody")
	p.await("it says that it is not placed", `document.querySelector("#one-title").textContent === "/chat/nobody" && !document.querySelector("#one-missing").hidden`)
	require.True(t, ask[bool](p, `document.querySelector("#one-acts").hidden && document.querySelector("#many").hidden`))
	p.goTo("#/ids?namespace=/chat&id=a%20b")
	p.await("it says what is wrong", `document.querySelector("#find-fault").textContent.includes("an id has only the characters")`)
	p.excused = append(p.excused, "400 (Bad Request)")
	p.wellBehaved(s)
	status, _ := s.call(http.MethodGet, "/registry/placement?namespace=/chat&id=nobody", tokenOperator, nil)
	require.Equal(t, http.StatusNotFound, status, "looking places nothing")
}
