package worker

import (
	"bufio"
	"cmp"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/memnet"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// Pinboard sends the request elsewhere when it hears of a refusal, which must not
// wait for the body of a client that is slow. Nor must what answers to anybody.
func TestAnAnswerOfTheWorkersOwnDoesNotWaitForTheBody(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		host     HostOptions
		token    string
		after    time.Duration // without a heartbeat
		status   int
		refusal  string
		line     string // of the request, if it is not for an instance
		finished bool   // the body is
		longer   bool   // the middleware keeps the request
	}{
		"invalid attestation":               {token: "x", status: 403},
		"invalid attestation, whole":        {token: "x", status: 403, finished: true},
		"another method":                    {token: "x", line: "POST /_pinned/live", status: 405},
		"a route without a secret":          {token: "x", line: "GET /_pinned/stats", status: 403},
		"a route that anybody may ask":      {token: "x", line: "GET /_pinned/live", status: 200},
		"unhealthy":                         {after: 13 * time.Second, status: 503, refusal: wire.RefusalLeaseUnhealthy},
		"unhealthy, whole":                  {after: 13 * time.Second, status: 503, refusal: wire.RefusalLeaseUnhealthy, finished: true},
		"expired":                           {after: 16 * time.Second, status: 503, refusal: wire.RefusalExpired},
		"unhealthy, behind a middleware":    {host: HostOptions{Middleware: plain}, after: 13 * time.Second, status: 503, refusal: wire.RefusalLeaseUnhealthy},
		"too late, by a middleware":         {host: HostOptions{Middleware: longer}, status: 503, refusal: wire.RefusalExpired, longer: true},
		"expired, in front of a middleware": {host: HostOptions{Middleware: plain}, after: 16 * time.Second, status: 503, refusal: wire.RefusalExpired},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, nil, func(t *testing.T, h *harness) {
				require.NoError(t, h.w.HostWith("/c", c.host, echo))
				h.start()
				if c.after > 0 {
					h.pb.answer(wire.PathHeartbeat, reply{err: io.ErrUnexpectedEOF})
					h.after(c.after)
				}
				l := memnet.NewListener()
				server := &http.Server{Handler: h.w}
				go func() { _ = server.Serve(l) }()
				defer func() { _ = server.Close() }()
				conn, err := l.Dial(t.Context())
				require.NoError(t, err)
				defer func() { _ = conn.Close() }()
				token := c.token
				if token == "" {
					token = h.request("POST", "/").Header.Get(wire.HeaderAttestation)
				}
				body := "x"
				if c.finished {
					body = "xx"
				}
				began := time.Now()
				if c.longer {
					began = began.Add(longerThanALease)
					h.pb.answer(wire.PathHeartbeat, reply{err: io.ErrUnexpectedEOF})
				}
				_, err = io.WriteString(conn, cmp.Or(c.line, "POST /c/1")+" HTTP/1.1\r\nHost: w\r\nContent-Length: 2\r\npinboard-attestation: "+token+"\r\n\r\n"+body)
				require.NoError(t, err)
				require.NoError(t, conn.SetReadDeadline(began.Add(time.Minute)))
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				require.NoError(t, err)
				require.Equal(t, c.status, resp.StatusCode)
				require.Equal(t, c.refusal, resp.Header.Get(wire.HeaderRefusal))
				require.Equal(t, !c.finished, resp.Close, "what comes after it is the body")
				require.LessOrEqual(t, time.Since(began), restTime)
				_ = conn.Close()
				time.Sleep(time.Second)
			})
		})
	}
}

func plain(next http.Handler) http.Handler { return next }

const longerThanALease = 16 * time.Second

// longer keeps a request until the lease is over.
func longer(http.Handler) http.Handler {
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-time.After(longerThanALease) })
}
