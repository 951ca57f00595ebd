package worker

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/memnet"
	"github.com/pinboard-go/pinboard/internal/testcert"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// freezing is a connection whose process may be stopped: nothing of it is read or
// written any more, and it stays open.
type freezing struct {
	net.Conn
	frozen *atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (c *freezing) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.frozen.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *freezing) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

type freezer struct {
	*memnet.Listener
	frozen *atomic.Bool
}

func (l freezer) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &freezing{Conn: conn, frozen: l.frozen, closed: make(chan struct{})}, nil
}

// Over HTTP/2, all calls share a connection. One that is given up for lack of an answer
// must not leave the next ones to the same node that has frozen.
func TestACallThatIsGivenUpIsTheLastOnItsConnection(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			authority := testcert.NewAuthority(t)
			certificate := authority.Issue("pinboard.test")
			var frozen atomic.Bool
			nodes := []freezer{{memnet.NewListener(), &frozen}, {memnet.NewListener(), new(atomic.Bool)}}
			var protocols http.Protocols
			protocols.SetHTTP1(!h2)
			protocols.SetHTTP2(h2)
			server := &http.Server{
				Handler:   http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }),
				TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}},
				Protocols: &protocols,
			}
			for _, n := range nodes {
				go func() { _ = server.ServeTLS(n, "", "") }()
			}
			defer func() { _ = server.Close() }()
			c := newClient(&Options{PinboardURL: "https://pinboard.test"})
			c.owned.TLSClientConfig = &tls.Config{RootCAs: authority.Pool()}
			c.owned.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				if frozen.Load() {
					return nodes[1].Dial(ctx)
				}
				return nodes[0].Dial(ctx)
			}
			defer c.close()
			_, err := c.post(t.Context(), wire.PathHeartbeat, map[string]any{})
			require.NoError(t, err)
			frozen.Store(true)
			_, err = c.post(t.Context(), wire.PathHeartbeat, map[string]any{})
			require.Error(t, err)
			_, err = c.post(t.Context(), wire.PathHeartbeat, map[string]any{})
			require.NoError(t, err, "HTTP/2: %v", h2)
		})
	}
}
