package pinboard

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// h2c has a front speak HTTP/2 without TLS, to clients that begin with it.
func h2c(s *setup) {
	s.server.Protocols = new(http.Protocols)
	s.server.Protocols.SetHTTP1(true)
	s.server.Protocols.SetUnencryptedHTTP2(true)
}

// testCertificate is httptest's, for 127.0.0.1, and what trusts it.
func testCertificate() (tls.Certificate, *x509.CertPool) {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	return server.TLS.Certificates[0], pool
}

// overHTTP2 runs a test with HTTP/2 over TLS, agreed on by ALPN, and without
// TLS. ask sends a request to a path of the front's.
func overHTTP2(t *testing.T, test func(t *testing.T, f *front, ask asker), changes ...func(*setup)) {
	t.Helper()
	for _, kind := range []string{"TLS", "h2c"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			transport := &http.Transport{Protocols: new(http.Protocols)}
			t.Cleanup(transport.CloseIdleConnections)
			scheme, change := "http", h2c
			transport.Protocols.SetUnencryptedHTTP2(true)
			if kind == "TLS" {
				certificate, pool := testCertificate()
				scheme, change = "https", func(s *setup) {
					s.server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}}
				}
				transport.Protocols.SetHTTP2(true)
				transport.TLSClientConfig = &tls.Config{RootCAs: pool}
			}
			f := newFront(t, append(changes, change)...)
			test(t, f, func(ctx context.Context, method, path string, body io.Reader, headers ...string) (*http.Response, error) {
				req, err := http.NewRequestWithContext(ctx, method, scheme+"://"+f.addr+path, body)
				require.NoError(t, err)
				for _, header := range headers {
					name, value, _ := strings.Cut(header, ": ")
					if name == "Trailer" {
						req.Trailer = http.Header{value: {"of " + value}}
						continue
					}
					req.Header.Add(name, value)
				}
				return transport.RoundTrip(req)
			})
		})
	}
}

type asker func(ctx context.Context, method, path string, body io.Reader, headers ...string) (*http.Response, error)

// whole asks and reads the answer, which must be in order and of HTTP/2.
func (ask asker) whole(t *testing.T, method, path string, body io.Reader, headers ...string) (*http.Response, string) {
	t.Helper()
	resp, err := ask(t.Context(), method, path, body, headers...)
	require.NoError(t, err)
	require.Equal(t, 2, resp.ProtoMajor)
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp, string(got)
}

// frames is a raw HTTP/2 connection to a front. It is for one request at a time
// on its streams 1, 3, 5, ….
type frames struct {
	*http2.Framer
	c      *client
	stream uint32
	block  bytes.Buffer
	enc    *hpack.Encoder
	// settings are those of the server.
	settings map[http2.SettingID]uint32
	goAway   bool
}

// frames opens a connection and says hello.
func (f *front) frames() *frames {
	f.t.Helper()
	c := f.ask(http2.ClientPreface)
	h := &frames{Framer: http2.NewFramer(c.Conn, c.r), c: c, stream: ^uint32(0), settings: map[http2.SettingID]uint32{}}
	h.enc = hpack.NewEncoder(&h.block)
	h.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	h.AllowIllegalWrites = true
	require.NoError(f.t, h.WriteSettings())
	return h
}

// open sends the head of a request on a new stream: "name: value" each, pseudo
// headers first. end says that no body follows.
func (h *frames) open(end bool, fields ...string) {
	h.c.t.Helper()
	h.stream += 2
	h.head(end, fields...)
}

// head sends one block of fields on the last stream: trailers, if it is the
// second.
func (h *frames) head(end bool, fields ...string) {
	h.c.t.Helper()
	h.block.Reset()
	for _, field := range fields {
		name, value, ok := strings.Cut(field[1:], ": ")
		require.True(h.c.t, ok, field)
		require.NoError(h.c.t, h.enc.WriteField(hpack.HeaderField{Name: field[:1] + name, Value: value}))
	}
	require.NoError(h.c.t, h.WriteHeaders(http2.HeadersFrameParam{
		StreamID: h.stream, BlockFragment: h.block.Bytes(), EndStream: end, EndHeaders: true,
	}))
}

// requestHead is the fields of a request for a path, and more.
func requestHead(method, path string, more ...string) []string {
	return append([]string{":method: " + method, ":scheme: http", ":authority: p", ":path: " + path}, more...)
}

// h2reply is what came back on the last stream.
type h2reply struct {
	informed []string    // the status of each informational answer
	hints    http.Header // of the last informational answer
	status   string
	header   http.Header
	trailer  http.Header
	body     string
	whole    bool // it ended in order
	reset    bool // it was cut
}

// next reads one frame of the last stream, and answers those of the connection.
func (h *frames) next() http2.Frame {
	h.c.t.Helper()
	for {
		frame, err := h.ReadFrame()
		require.NoError(h.c.t, err)
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				require.NoError(h.c.t, frame.ForeachSetting(func(s http2.Setting) error { h.settings[s.ID] = s.Val; return nil }))
				require.NoError(h.c.t, h.WriteSettingsAck())
			}
		case *http2.GoAwayFrame:
			h.goAway = true
			require.Equal(h.c.t, http2.ErrCodeNo, frame.ErrCode, "%s", frame.DebugData())
		case *http2.WindowUpdateFrame, *http2.PingFrame:
		default:
			if frame.Header().StreamID == h.stream {
				return frame
			}
		}
	}
}

// reply reads frames until the stream has ended.
func (h *frames) reply() h2reply {
	h.c.t.Helper()
	var r h2reply
	for !r.whole && !r.reset {
		switch frame := h.next().(type) {
		case *http2.MetaHeadersFrame:
			status := frame.PseudoValue("status")
			fields := http.Header{}
			for _, field := range frame.RegularFields() {
				fields.Add(field.Name, field.Value)
			}
			switch {
			case strings.HasPrefix(status, "1"):
				r.informed, r.hints = append(r.informed, status), fields
			case status != "":
				r.status, r.header = status, fields
			default:
				r.trailer = fields
			}
			r.whole = frame.StreamEnded()
		case *http2.DataFrame:
			r.body += string(frame.Data())
			r.whole = frame.StreamEnded()
		case *http2.RSTStreamFrame:
			r.reset = true
		}
	}
	return r
}

// send opens a stream, sends a body, if there is one, and reads the reply.
func (h *frames) send(body string, fields ...string) h2reply {
	h.c.t.Helper()
	h.open(body == "", fields...)
	if body != "" {
		require.NoError(h.c.t, h.WriteData(h.stream, true, []byte(body)))
	}
	return h.reply()
}

// hpackField is a field that may have any name.
func hpackField(field [2]string) hpack.HeaderField {
	return hpack.HeaderField{Name: field[0], Value: field[1]}
}

// headersFrame is the head that was encoded, as a whole request.
func headersFrame(h *frames) http2.HeadersFrameParam {
	return http2.HeadersFrameParam{StreamID: h.stream, BlockFragment: h.block.Bytes(), EndStream: true, EndHeaders: true}
}

// status returns the status of a reply, "" if the stream or the connection was
// ended in place of one.
func (h *frames) status() string {
	for {
		frame, err := h.ReadFrame()
		if err != nil {
			return ""
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			return frame.PseudoValue("status")
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return ""
		}
	}
}
