package pinboard_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pinboard-go/pinboard"
	"github.com/pinboard-go/pinboard/internal/proxytest"
	"github.com/pinboard-go/pinboard/internal/testcert"
	"github.com/pinboard-go/pinboard/passport"
	"github.com/pinboard-go/pinboard/worker"
)

const networkPassport = `{
 "providers": [{"type": "staticToken", "id": "pinboard", "keys": [{"name": "fleet", "token": "fleet-token",
   "scopes": ["pinboard:worker"], "claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["*"]}}}]}],
 "namespaces": {"*": {"allow": "anonymous"}}}`

const networkLease = 3 * time.Second

// network is how a fleet's processes reach each other.
type network struct {
	listen  func() net.Listener
	workers *http.Transport // pinboard's to workers
	nodes   http.RoundTripper
	tls     *tls.Config // of the workers' servers, nil for none
	nodeTLS *tls.Config // of pinboard's server
}

func scheme(config *tls.Config) string {
	if config == nil {
		return "http://"
	}
	return "https://"
}

// serve starts a server that ends with the test.
func (n *network) serve(t *testing.T, handler http.Handler) (url string) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	_ = server.Listener.Close()
	server.Listener, server.TLS, server.EnableHTTP2 = n.listen(), n.nodeTLS, true
	url = scheme(n.nodeTLS) + server.Listener.Addr().String()
	if n.nodeTLS == nil {
		server.Start()
	} else {
		server.StartTLS()
	}
	t.Cleanup(server.Close)
	return url
}

// newWorker starts a worker, by its own Serve, and returns when it is
// registered.
func (n *network) newWorker(t *testing.T, pinboardURL string) {
	t.Helper()
	listener := n.listen()
	url := scheme(n.tls) + listener.Addr().String()
	if n.tls != nil {
		listener = tls.NewListener(listener, n.tls)
	}
	w, err := worker.New(worker.Options{
		PinboardURL: pinboardURL, Token: "fleet-token", AdvertiseURL: url, Transport: n.nodes,
		HeartbeatInterval: networkLease / 6, LeaseBuffer: networkLease / 3, LeaseTTL: networkLease,
	})
	require.NoError(t, err)
	require.NoError(t, w.Host("/rooms", newRoom))
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- w.Serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-served)
	})
	waiting, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, w.AwaitReady(waiting))
}

// newRoom answers with its id; /next asks another room, /ws echoes.
func newRoom(inst *worker.Instance) (http.Handler, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, inst.ID()) })
	mux.HandleFunc("GET /next", func(w http.ResponseWriter, _ *http.Request) {
		res, err := inst.Client().Get("/rooms/next-to-" + inst.ID() + "/")
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = res.Body.Close() }()
		_, _ = io.Copy(w, res.Body)
	})
	mux.HandleFunc("GET /ws", func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = conn.CloseNow() }()
		for {
			kind, message, err := conn.Read(r.Context())
			if err != nil || conn.Write(r.Context(), kind, message) != nil {
				return
			}
		}
	})
	return mux, nil
}

// works runs a pinboard and two workers on the network, and requires that
// requests, calls of one instance to another and WebSockets get through.
func (n *network) works(t *testing.T) {
	t.Helper()
	keys, err := passport.Parse([]byte(networkPassport), func(string) (string, bool) { return "", false })
	require.NoError(t, err)
	pb, err := pinboard.New(pinboard.Options{
		Passport: keys, Store: pinboard.MemoryStore(), LeaseTTL: networkLease, Transport: n.workers, PlacementHold: time.Minute,
	})
	require.NoError(t, err)
	url := n.serve(t, pb)
	// After the workers have left, and before the server waits for connections.
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, pb.Shutdown(ctx))
	})
	n.newWorker(t, url)
	n.newWorker(t, url)
	client := &http.Client{Transport: n.nodes}
	if n.nodes == nil {
		direct := &http.Transport{} // this is no worker, and has no business with a proxy either
		t.Cleanup(direct.CloseIdleConnections)
		client.Transport = direct
	}
	get := func(path string) string {
		res, err := client.Get(url + path)
		require.NoError(t, err)
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, res.StatusCode, "%s", body)
		return string(body)
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		require.Equal(t, id, get("/rooms/"+id+"/"))
		require.Equal(t, "next-to-"+id, get("/rooms/"+id+"/next"))
		conn, _, err := websocket.Dial(t.Context(), url+"/rooms/"+id+"/ws", &websocket.DialOptions{HTTPClient: client})
		require.NoError(t, err)
		require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte("there and back")))
		_, message, err := conn.Read(t.Context())
		require.NoError(t, err)
		require.Equal(t, "there and back", string(message))
		require.NoError(t, conn.Close(websocket.StatusNormalClosure, ""))
	}
}

func loopback(t *testing.T) func() net.Listener {
	return func() net.Listener {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		return listener
	}
}

// trusting is a transport of a process with its certificate.
func trusting(t *testing.T, roots *x509.CertPool, own tls.Certificate) *http.Transport {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil
	transport.TLSClientConfig = &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

func TestAFleetWorksWhereEverybodyProvesThemselvesByCertificates(t *testing.T) {
	t.Parallel()
	nodes, workers := testcert.NewAuthority(t), testcert.NewAuthority(t)
	served := func(own, others *testcert.Authority) *tls.Config {
		return &tls.Config{
			Certificates: []tls.Certificate{own.Issue("127.0.0.1")}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: others.Pool(),
		}
	}
	n := &network{
		listen: loopback(t), tls: served(workers, nodes), nodeTLS: served(nodes, workers),
		workers: trusting(t, workers.Pool(), nodes.Issue("node")), nodes: trusting(t, nodes.Pool(), workers.Issue("worker")),
	}
	n.works(t)
}

// What is sent to pinboard, the token and the worker's secret, is for whom the
// transport trusts.
func TestAWorkerTellsNothingToAPinboardThatItDoesNotTrust(t *testing.T) {
	t.Parallel()
	nodes, others := testcert.NewAuthority(t), testcert.NewAuthority(t)
	for name, transport := range map[string]http.RoundTripper{
		"none of its own": nil, "another authority": trusting(t, others.Pool(), others.Issue("worker")),
	} {
		n := &network{listen: loopback(t), nodeTLS: &tls.Config{Certificates: []tls.Certificate{nodes.Issue("127.0.0.1")}}}
		var asked atomic.Int64
		url := n.serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
		core, logs := observer.New(zap.InfoLevel)
		w, err := worker.New(worker.Options{
			PinboardURL: url, Token: "fleet-token", AdvertiseURL: "http://127.0.0.1:1", Transport: transport, Logger: zap.New(core),
		})
		require.NoError(t, err)
		require.NoError(t, w.Host("/rooms", newRoom))
		require.NoError(t, w.Start())
		failed := func() bool { return logs.FilterMessage("registration failed").Len() > 0 }
		require.Eventually(t, failed, time.Minute, time.Millisecond)
		reason := logs.FilterMessage("registration failed").All()[0].ContextMap()["error"]
		require.Contains(t, reason, "certificate signed by unknown authority", name)
		require.NoError(t, w.Shutdown(t.Context()))
		require.Zero(t, asked.Load(), name)
	}
}

func TestAFleetPassesByTheProxyInTheEnvironment(t *testing.T) { // C58
	t.Parallel()
	proxytest.Run(t, func(t *testing.T) {
		n := &network{listen: func() net.Listener { return proxytest.Listen(t) }}
		n.works(t)
	})
}
