// Package proxytest has tests run where the environment names an HTTP proxy.
package proxytest

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// inside is set in a process of the tests that has a proxy in its environment.
const inside = "PINBOARD_TEST_INSIDE_PROXIED_PROCESS"

// Run runs a test in a process of its own, because net/http reads the
// environment once in a process. A proxy is set there in every way there is,
// and the test fails if anybody connects to it. The caller has to be a test
// itself, not a part of one.
func Run(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if os.Getenv(inside) != "" {
		through, err := http.ProxyFromEnvironment(httptest.NewRequest(http.MethodGet, "http://192.0.2.1", nil))
		if err != nil || through == nil {
			t.Fatalf("the environment names no proxy: %v", err)
		}
		test(t)
		return
	}
	proxy, asked := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1", "NO_PROXY=", "no_proxy=", "REQUEST_METHOD=")
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		cmd.Env = append(cmd.Env, name+"="+proxy, strings.ToLower(name)+"="+proxy)
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("in a process with a proxy in its environment: %v\n%s", err, out)
	}
	if n := asked.Load(); n > 0 {
		t.Fatalf("the proxy of the environment got %d connections", n)
	}
}

// start starts a proxy that counts who connects.
func start(t *testing.T) (url string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			asked.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	return server.URL, asked
}

// Listen listens at an address of this machine that is not a loopback one:
// net/http calls those without a proxy, whatever the environment says. The test
// fails on a machine without any.
func Listen(t *testing.T) net.Listener {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatalf("look for this machine's addresses: %v", err)
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			listener, err := net.Listen("tcp", net.JoinHostPort(ip.IP.String(), "0"))
			if err != nil {
				t.Fatalf("listen: %v", err)
			}
			return listener
		}
	}
	t.Fatal("this machine has no address but loopback ones: the test needs one, of any interface")
	return nil
}
