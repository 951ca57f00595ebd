//go:build linux

package upstream

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What follows the head of a worker's answer, in order or not.
var afterHeads = []string{
	"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n5;x=y\r\nhello\r\n0\r\n\r\n",
	"Transfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n3\r\nabc\r\n0\r\nX-A: b\r\n\r\n",
	"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
	"Transfer-Encoding: chunked\r\n\r\n3\r\nabcXX5\r\nhello\r\n0\r\n\r\n",
	"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\nhello\r\n0\r\n\r\n",
	"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n5\r\nhel",
	"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
	"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nno trailer\r\n\r\n",
	"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
	"\r\nuntil the end",
	"\r\n",
}

// polled reads an answer as who sleeps in between does: it looks when it was told that
// something has come, and from then on only where something may be left. more has the
// rest sent.
func polled(t *testing.T, r *Response, more func()) (body string, err error) {
	t.Helper()
	told := false // of the end
	require.Eventually(t, func() bool {
		for again := true; err == nil && r.Poll(again); again = told {
			var p []byte
			p, err = r.Next()
			body += string(p)
		}
		more()
		told = true
		return err != nil
	}, patience, time.Millisecond)
	return body, err
}

func awaited(r *Response) (body string, err error) {
	for err == nil {
		var p []byte
		p, err = r.Next()
		body += string(p)
	}
	return body, err
}

func TestAnAnswerIsTheSamePolledOrAwaitedWhereverItIsSplit(t *testing.T) {
	t.Parallel()
	for _, text := range afterHeads {
		open := func(at int) (r *Response, more func()) {
			step := make(chan struct{})
			w := newTCPWorker(t, func(p *peer) {
				p.head()
				p.send("HTTP/1.1 200 OK\r\n" + text[:at])
				<-step
				p.send(text[at:])
				_ = p.Close()
			})
			resp, err := w.pool().Do(t.Context(), w.request("GET", "/"))
			require.NoError(t, err)
			return resp.Shed(t.Context()), sync.OnceFunc(func() { close(step) })
		}
		head := strings.Index("\r\n"+text, "\r\n\r\n") + len("\r\n")
		r, more := open(head)
		more()
		body, fault := awaited(r)
		trailer := r.Trailer
		r.Close()
		for at := head; at <= len(text); at++ {
			r, more := open(at)
			polledBody, polledFault := polled(t, r, more)
			require.Equal(t, body, polledBody, text[:at])
			require.Equal(t, fault, polledFault, text[:at])
			require.Equal(t, trailer, r.Trailer, text[:at])
			r.Close()
		}
	}
}
