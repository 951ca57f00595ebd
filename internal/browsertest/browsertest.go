// Package browsertest starts a real browser for tests.
package browsertest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// New starts Chromium, which the test needs, and returns a context for its
// pages. It is given patience to start, and ended with the test.
func New(t testing.TB, patience time.Duration) context.Context {
	t.Helper()
	flags := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.WSURLReadTimeout(patience))
	if os.Geteuid() == 0 {
		flags = append(flags, chromedp.NoSandbox) // Chromium's sandbox refuses to work for root
	}
	browser, cancel := chromedp.NewContext(context.Background(), chromedp.WithAllocatorOptions(flags...))
	t.Cleanup(func() {
		_ = chromedp.Cancel(browser) // waits until it has ended
		cancel()
	})
	require.NoError(t, chromedp.Do(browser), "start Chromium (Debian: apt-get install chromium)")
	return browser
}
