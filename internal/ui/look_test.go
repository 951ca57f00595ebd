package ui_test

import (
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/stretchr/testify/require"
)

// views are all that the page shows, as expressions that bring it about.
var views = []struct{ name, open, until string }{
	{"fleet", `location.hash = "#/fleet"`, `!document.querySelector("#fleet").hidden`},
	{"worker", `location.hash = "#/fleet?worker=fake"`, `document.querySelector("#worker").open`},
	{"drain", `document.querySelector("#worker-drain").click()`, `document.querySelector("#change").open`},
	{"id", `document.querySelector("#change").close(), location.hash = "#/ids?namespace=/docs&id=` + long + `"`, `!document.querySelector("#one").hidden && !document.querySelector("#one-acts").hidden`},
	{"wind down", `document.querySelector("#wind-down").click()`, `document.querySelector("#change").open`},
	{"ids", `document.querySelector("#change").close(), location.hash = "#/ids?namespace=/docs&prefix=l&hostname=&client="`, `document.querySelectorAll("#rows tr").length > 0`},
	{"events", `location.hash = "#/events"`, `document.querySelectorAll("#event-rows li").length > 0`},
}

// long is as long as an id may be.
var long = strings.Repeat("l", 256)

// everyView shows a fleet with names as long as they may be, view by view.
func everyView(t *testing.T, prepare func(p *tab), check func(p *tab, view string)) {
	t.Helper()
	s := newSite(t, siteOptions{})
	s.fake(nil)
	s.fake(map[string]any{
		"clientId": strings.Repeat("W", 512), "env": strings.Repeat("e", 512), "hostname": strings.Repeat("h", 63) + ".example",
		"namespaces": []string{"/" + strings.Repeat("n", 127), "/a", "/b", "/c", "/d"},
	})
	s.place("/docs/" + long + "/")
	s.call("POST", "/registry/drain", tokenOperator, map[string]any{"clientId": strings.Repeat("W", 512), "deadline": 500})
	p := blank(t, newBrowser(t))
	p.excused = []string{refusedOnce}
	prepare(p)
	p.visit(s.url + "/registry/ui")
	p.await("it asks for a token", `document.activeElement.id === "token"`)
	check(p, "sign-in")
	p.signIn(tokenOperator)
	p.awaitFleet()
	for _, v := range views {
		ask[string](p, "("+v.open+", '')")
		p.await("it shows "+v.name, v.until)
		check(p, v.name)
	}
	s.lose()
	p.excused = append(p.excused, "ERR_")
	p.await("it says so", stale)
	check(p, "connection lost")
	p.wellBehaved(s)
}

func TestNothingIsWiderThanAPhone(t *testing.T) {
	t.Parallel()
	everyView(t, (*tab).phone, func(p *tab, view string) {
		wide := ask[[]string](p, `[...document.querySelectorAll("body, body *")]
			.filter((e) => e.checkVisibility() && !e.closest(".aside, thead") && !(e instanceof SVGElement))
			.filter((e) => { const r = e.getBoundingClientRect(); return r.right > 360.5 || r.left < -0.5 })
			.filter((e) => !e.parentElement.closest(".under, .brand")) // cut, with an ellipsis
			.map((e) => e.tagName + "#" + e.id + "." + e.className + " " + e.getBoundingClientRect().right)`)
		require.Empty(p.t, wide, view)
		require.LessOrEqual(p.t, ask[int](p, "document.documentElement.scrollWidth"), 360, view)
		small := ask[[]string](p, `[...document.querySelectorAll("button, select, input:not([type=checkbox], [type=radio])")]
			.filter((e) => e.checkVisibility() && e.getBoundingClientRect().height < 40).map((e) => e.id + e.outerHTML)`)
		require.Empty(p.t, small, "%s: too small for a finger", view)
	})
}

// contrast lists texts that are hard to read: those below 4.5 to 1 against what
// is behind them.
const contrast = `(() => {
	const channels = (c) => { const m = c.match(/[\d.]+/g).map(Number); return [m[0], m[1], m[2], m[3] ?? 1] };
	const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
	const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3]));
	const ground = (e) => { if (!e) return [255, 255, 255]; const c = channels(getComputedStyle(e).backgroundColor); return c[3] === 1 ? c : over(c, ground(e.parentElement)) };
	return [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() && !e.closest(".aside, [disabled], [aria-disabled=true], option, datalist, svg") &&
		([...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || e.matches("input, select"))).map((e) => {
		const behind = ground(e), front = over(channels(getComputedStyle(e).color), behind);
		const [a, b] = [light(behind), light(front)].sort((x, y) => y - x);
		return [(a + 0.05) / (b + 0.05), e.tagName + "#" + e.id + "." + e.className + ": " + e.textContent.slice(0, 40)];
	}).filter(([ratio]) => ratio < 4.5).map(([ratio, what]) => ratio.toFixed(2) + " " + what);
})()`

func TestTextIsReadableInTheLightAndInTheDark(t *testing.T) {
	t.Parallel()
	for scheme, prepare := range map[string]func(p *tab){"light": func(*tab) {}, "dark": (*tab).dark} {
		everyView(t, prepare, func(p *tab, view string) {
			require.Empty(p.t, ask[[]string](p, contrast), "%s, %s", scheme, view)
			ground := ask[string](p, `getComputedStyle(document.documentElement).backgroundColor`)
			require.Equal(p.t, map[string]string{"light": "rgb(246, 246, 247)", "dark": "rgb(19, 20, 23)"}[scheme], ground)
		})
	}
}

// What a screen reader has to go by.
func TestEverythingThatCanBeUsedHasANameAndWhatIsThereHasAnOrder(t *testing.T) {
	t.Parallel()
	everyView(t, func(*tab) {}, func(p *tab, view string) {
		tree := command(p, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes
		used := 0
		for _, node := range tree {
			role := text(node.Role)
			switch role {
			case "button", "link", "textbox", "searchbox", "combobox", "radio", "checkbox", "spinbutton", "table", "dialog", "navigation", "image", "search":
				if node.Ignored {
					continue
				}
				used++
				require.NotEmpty(p.t, text(node.Name), "%s: a %s without a name", view, role)
			}
		}
		require.Positive(p.t, used, view)
		require.Empty(p.t, ask[[]string](p, `[...document.querySelectorAll("[tabindex]")].filter((e) => e.tabIndex > 0).map((e) => e.outerHTML)`))
		doubles := ask[[]string](p, `[...document.querySelectorAll("[id]")].map((e) => e.id).filter((id, i, all) => all.indexOf(id) !== i)`)
		require.Empty(p.t, doubles, "ids that are there twice")
		broken := ask[[]string](p, `["for", "aria-labelledby", "aria-describedby", "list"].flatMap((name) => [...document.querySelectorAll("[" + name + "]")]
			.flatMap((e) => e.getAttribute(name).split(" ")).filter((id) => !document.getElementById(id)))`)
		require.Empty(p.t, broken, "references to what is not there")
	})
}

func text(v *accessibility.Value) string {
	if v == nil {
		return ""
	}
	return strings.Trim(v.Value.String(), `"`)
}
