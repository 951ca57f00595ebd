package pinboard

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/proxytest"
)

func TestAProxyInTheEnvironmentIsPassedBy(t *testing.T) { // C58
	t.Parallel()
	proxytest.Run(t, func(t *testing.T) {
		for name, model := range map[string]*http.Transport{
			"default": nil, "a copy of net/http's": http.DefaultTransport.(*http.Transport).Clone(),
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newRealWorker(t, "a", func(s *httptest.Server) {
					_ = s.Listener.Close()
					s.Listener = proxytest.Listen(t)
					s.Start()
				})
				require.NotContains(t, w.url, "127.0.0.1")
				f, _ := registryFront(t, withTransport(model))
				f.reaches(w)
			})
		}
	})
}
