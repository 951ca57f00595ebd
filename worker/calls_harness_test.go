package worker

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// cluster is a worker whose instances call each other and, through the fake
// pinboard's data plane, those of others.
type cluster struct {
	*harness
	instances sync.Map // *Instance by id

	mu      sync.Mutex
	arrived []*http.Request // at the data plane
	bodies  []string
}

// inCluster runs a test in virtual time. handler serves the namespace /c, and
// elsewhere what comes to pinboard's data plane. The instance "slow" never comes
// to live.
func inCluster(t *testing.T, handler func(inst *Instance, w http.ResponseWriter, r *http.Request), elsewhere http.HandlerFunc,
	test func(t *testing.T, c *cluster),
) {
	t.Helper()
	c := &cluster{}
	construct := serving(handler)
	inBubble(t, Options{}, hosting(func(inst *Instance) (http.Handler, error) {
		c.instances.Store(inst.ID(), inst)
		if inst.ID() == "slow" {
			<-inst.Context().Done()
		}
		return construct(inst)
	}), func(t *testing.T, h *harness) {
		c.harness = h
		c.serveElsewhere(elsewhere)
		h.start()
		test(t, c)
	})
}

// serveElsewhere makes the data plane: a server on pipes.
func (c *cluster) serveElsewhere(handler http.HandlerFunc) {
	listener := newPipeListener()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		c.arrived = append(c.arrived, r)
		c.mu.Unlock()
		if handler != nil {
			handler(w, r)
			return
		}
		body, _ := io.ReadAll(r.Body)
		c.mu.Lock()
		c.bodies = append(c.bodies, string(body))
		c.mu.Unlock()
		_, _ = io.WriteString(w, "elsewhere")
	})}
	go func() { _ = server.Serve(listener) }()
	transport := &http.Transport{DialContext: listener.dial, DisableCompression: true}
	c.pb.plane = transport
	c.t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
	})
}

func (c *cluster) seen() []*http.Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.arrived
}

// open activates an instance, and returns it.
func (c *cluster) open(id string) *Instance {
	c.t.Helper()
	require.Equal(c.t, http.StatusOK, c.get("/c/"+id).Code)
	inst, ok := c.instances.Load(id)
	require.True(c.t, ok)
	return inst.(*Instance)
}

// read returns the text of an answer.
func read(t *testing.T, res *http.Response, err error) string {
	t.Helper()
	require.NoError(t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	return string(body)
}

// whoCalls answers with who called, and how.
func whoCalls(_ *Instance, w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	caller, _ := CallerFrom(r.Context())
	by := "nobody"
	if i := caller.Instance; i != nil {
		by = fmt.Sprintf("%s/%s at %d", i.Namespace, i.ID, i.Depth)
	}
	for name := range r.Header {
		if wire.Reserved(name) || strings.HasPrefix(name, "X-") {
			by += " with " + name
		}
	}
	_, _ = fmt.Fprintf(w, "%s %s %s %q by %s", r.Method, r.Host, r.URL.RequestURI(), body, by)
}

// closedBody tells whether it was closed.
type closedBody struct {
	io.Reader
	closed bool
}

func (b *closedBody) Close() error {
	b.closed = true
	return nil
}
