package ui_test

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// markup is what somebody calls himself who wants a page to run it.
const markup = `<img src=x onerror="document.title='broken'">`

// What workers say of themselves is shown to the letter, wherever it is shown.
func TestNamesThatAreMarkupAreShownAsText(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	const turned = "ab\u202ecd\u200b"
	s.fake(map[string]any{
		"clientId": markup, "env": markup, "hostname": "app.example", "namespaces": []string{`/<b>&"'`, "/docs"}, "envs": map[string]string{"/docs": turned},
	})
	s.fake(map[string]any{"clientId": turned, "namespaces": []string{"/docs"}})
	browser := newBrowser(t)
	p := open(t, browser, s.url)
	p.excused = []string{refusedOnce, "404 (Not Found)", "400 (Bad Request)"}
	p.signIn(tokenOperator)
	p.awaitFleet()
	clean := func(where string) {
		t.Helper()
		require.Equal(t, 0, ask[int](p, `document.querySelectorAll("body :is(img, b:not(.count b):not(p b), script, iframe, object)").length`), where)
		require.NotContains(t, ask[string](p, "document.title"), "broken", where)
		require.Equal(t, 0, ask[int](p, `[...document.querySelectorAll("body *")].filter((e) => [...e.attributes].some((a) => a.name.startsWith("on"))).length`), where)
		require.False(t, ask[bool](p, `/[\u202e\u200b]/.test(document.body.textContent + [...document.querySelectorAll("[title], [aria-label]")].map((e) => e.title + e.getAttribute("aria-label")).join(""))`),
			"%s: what turns or hides text", where)
	}
	p.await("the rows are there", `document.querySelectorAll("#worker-rows tr").length === 2`)
	all := ask[string](p, `document.querySelector("#worker-rows").textContent`)
	require.Contains(t, all, markup)
	require.Contains(t, all, `/<b>&"'`)
	require.Contains(t, all, "ab\ufffdcd\ufffd")
	clean("fleet")

	ask[string](p, `([...document.querySelectorAll("#worker-rows tr")].find((tr) => tr.textContent.includes("<img")).querySelector("a").click(), "")`)
	p.await("details are open", `document.querySelector("#worker").open`)
	require.Contains(t, p.text("#worker-facts"), markup)
	p.do(chromedp.Click("#worker-stats"))
	p.await("it told", `document.querySelector("#worker-told").textContent.includes("Memory")`)
	require.Equal(t, "1 MiB", ask[string](p, `document.querySelector("#worker-told dd").textContent`), "what is no number is left out")
	clean("details")
	p.do(chromedp.Click("#worker-drain"))
	p.await("it asks", `document.querySelector("#change").open`)
	require.Contains(t, p.text("#change-text"), markup)
	clean("dialog")
	p.do(chromedp.Click("#change-cancel"))

	p.goTo("#/events")
	p.await("events are there", `document.querySelector("#event-rows").textContent.includes("registered for")`)
	require.Contains(t, ask[string](p, `document.querySelector("#event-rows").textContent`), `/<b>&"'`)
	clean("events")
	for _, hash := range []string{
		"#/ids?namespace=/docs&id=" + markup, "#/ids?namespace=" + markup, "#/ids?client=" + markup, "#/fleet?worker=" + markup, "#/" + markup,
		"#/ids?namespace=/docs&prefix=" + markup, "#/events?" + markup, "#/ids?__proto__=x&namespace=/docs",
	} {
		p.goTo(hash)
		p.await("it has an answer", `!document.querySelector("#ids").hidden && (document.querySelector("#find-fault").textContent !== "" || document.querySelector("#rows-stop").hidden) || document.querySelector("#ids").hidden`)
		clean(hash)
	}
	p.wellBehaved(s)
}
