package ui_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// markup is what somebody calls himself who wants a page to run it.
const markup = `<img src=x onerror="document.title='broken'">`

func TestAnOperatorSignsInWithATokenAndSeesTheFleet(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	s.join(100, "/chat")
	p := open(t, newBrowser(t), s.url)
	p.signIn(tokenOperator)
	p.awaitFleet()
	require.Equal(t, "1", p.text("#workers"))
	p.excused = append(p.excused, "401 (Unauthorized)")
	p.wellBehaved(s)
}
