package upstream

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// script is a connection on which everything has come already, in pieces of the
// same size.
type script struct {
	left  []byte
	piece int
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.left) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.left[:min(len(s.left), s.piece)])
	s.left = s.left[n:]
	return n, nil
}

func (*script) Write(p []byte) (int, error)      { return len(p), nil }
func (*script) Close() error                     { return nil }
func (*script) LocalAddr() net.Addr              { return nil }
func (*script) RemoteAddr() net.Addr             { return nil }
func (*script) SetDeadline(time.Time) error      { return nil }
func (*script) SetReadDeadline(time.Time) error  { return nil }
func (*script) SetWriteDeadline(time.Time) error { return nil }

// readRaw reads the first final answer in raw bytes that come in pieces, and
// returns what was left of them.
func readRaw(raw []byte, piece int, method string) (g got, rest int, err error) {
	s := &script{left: raw, piece: piece}
	pool := New(Config{})
	c := newConn(s, pool.enter(&Origin{}), 0)
	c.wire.written.Store(1) // the request
	r := &Response{c: c, pool: pool, req: &Request{Method: method}, stop: func() bool { return true }}
	if err := r.readHeads(); err != nil {
		return got{}, 0, err
	}
	var body bytes.Buffer
	for err == nil {
		var p []byte
		p, err = r.Next()
		body.Write(p)
	}
	g = got{Response: *r, body: body.String()}
	if err != io.EOF {
		g.err = err
	}
	return g, len(s.left) + c.in.len(), nil
}

// What is accepted here net/http accepts too, and takes for the same.
func FuzzAnswersAreReadAsNetHTTPDoes(f *testing.F) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for _, seed := range []string{
		ok + "Content-Length: 4\r\nX-A: b\r\n\r\nbodyrest", ok + "Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n4\r\nbody\r\n0\r\nX: y\r\n\r\nrest",
		"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok + "\r\nbody", "HTTP/1.0 404 Not Found\r\n\r\nbody", "HTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.1 304\r\nContent-Length: 5\r\n\r\n", ok + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
		ok + "Transfer-Encoding: chunked\r\n\r\n1;x=y\r\na\r\n00\r\n\r\n", ok + "X: a\r\n b\r\n\r\n", ok + "X : a\r\n\r\n", "HTTP/1.1 200 OK\n\n",
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x00", ok + "Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
		ok + "Transfer-Encoding: chunked\r\n\r\n1000\r\n" + strings.Repeat("a", 4096) + "\r\n1;" + strings.Repeat("x", 5000) + "\r\na\r\n0\r\n\r\n",
	} {
		f.Add([]byte(seed), uint8(0), false)
		f.Add([]byte(seed), uint8(255), true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, piece uint8, head bool) {
		method := http.MethodGet
		if head {
			method = http.MethodHead
		}
		g, rest, err := readRaw(raw, int(piece)+1, method)
		whole, restOfWhole, wholeErr := readRaw(raw, len(raw)+1, method)
		require.Equal(t, wholeErr, err, "however it comes")
		require.Equal(t, whole.err, g.err)
		require.Equal(t, whole.body, g.body)
		require.Equal(t, restOfWhole, rest)
		if err != nil {
			return
		}
		theirs := bufio.NewReader(bytes.NewReader(raw))
		resp, err := http.ReadResponse(theirs, &http.Request{Method: method})
		for ; err == nil && resp.StatusCode < 200 && resp.StatusCode != 101; resp, err = http.ReadResponse(theirs, &http.Request{Method: method}) {
		}
		require.NoError(t, err, "net/http refuses what was accepted")
		require.Equal(t, resp.StatusCode, g.Status)
		ours := http.Header{}
		for _, field := range g.Header {
			ours[field.Name] = append(ours[field.Name], field.Value)
		}
		compareHeaders(t, resp, ours)
		body, err := io.ReadAll(resp.Body)
		if g.err != nil {
			return // net/http may be content with more
		}
		require.NoError(t, err)
		require.Equal(t, string(body), g.body)
		if g.framing != byClose {
			left, err := io.ReadAll(theirs)
			require.NoError(t, err)
			require.Len(t, left, rest, "the answer ends elsewhere")
		}
		for name, values := range resp.Trailer {
			if values != nil {
				require.Equal(t, values[0], g.Trailer.Get(name))
			}
		}
	})
}

// compareHeaders leaves aside what net/http takes out of a header, or puts in.
func compareHeaders(t *testing.T, resp *http.Response, ours http.Header) {
	t.Helper()
	for _, name := range []string{transferEncoding, trailer, contentLength} {
		resp.Header.Del(name)
		delete(ours, name)
	}
	if strings.Contains(strings.Join(ours["Pragma"], ","), "no-cache") {
		resp.Header.Del("Cache-Control")
		delete(ours, "Cache-Control")
	}
	require.Equal(t, ours, http.Header(resp.Header))
}
