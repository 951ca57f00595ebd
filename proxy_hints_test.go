package pinboard

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestManyEarlyHintsPassInTheirOrder(t *testing.T) { // C14
	t.Parallel()
	const hints = 100
	f := newFront(t)
	var all, want strings.Builder
	for i := range hints {
		fmt.Fprintf(&all, "HTTP/1.1 103 Early Hints\r\nLink: </%d>\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n", i)
		fmt.Fprintf(&want, "HTTP/1.1 103 Early Hints\r\nLink: </%d>\r\n\r\n", i)
	}
	w := newFake(t, func(h *hit) {
		h.send(all.String()[:all.Len()/2])
		h.body()
		h.send(all.String()[all.Len()/2:])
		h.ok("done")
	})
	f.register(w, "a")
	var clients sync.WaitGroup
	for range 20 {
		c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody")
		clients.Go(func() {
			got, err := c.rest()
			assert.NoError(t, err)
			assert.True(t, strings.HasPrefix(got, want.String()+"HTTP/1.1 200 OK\r\n"), got)
			assert.True(t, strings.HasSuffix(got, "\r\n\r\ndone"), got)
		})
	}
	clients.Wait()
}
