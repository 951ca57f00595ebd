package e2e_test

import (
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The Python worker of the compose example serves, is ready when it has
// registered, and on SIGTERM drains, deregisters and ends.
func TestTheComposeExamplesPythonWorker(t *testing.T) {
	t.Parallel()
	f := emptyFleet(t, memory)
	// The lease has to leave room for the client's own heartbeat and buffer.
	f.settings = []string{"PINBOARD_LEASE_TTL_MS=9000", "PINBOARD_PASSPORT=" + strings.Replace(passportDocument, `"/kept"`, `"/counters": {"allow": "anonymous"}, "/kept"`, 1)}
	f.startNode(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	require.NoError(t, free.Close())
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)

	reserve(t, plan{kind: python})
	p := start(t, "compose-python", []string{
		"PINBOARD_URL=" + f.url(), "PINBOARD_TOKEN=" + f.fleetToken, "ADVERTISE_URL=http://" + address, "PORT=" + port, "DRAIN_SECONDS=5",
	}, pythonBinary, filepath.Join("..", "..", "examples", "compose", "python", "app.py"))
	awaitTrue(t, "it is ready", func() bool {
		a, err := f.client.try(t.Context(), http.MethodGet, "http://"+address+"/ready")
		return err == nil && a.status == http.StatusOK
	})
	require.Len(t, f.listWorkers(t), 1)
	awaitTrue(t, "ids are placed", func() bool {
		a, err := f.client.try(t.Context(), http.MethodPost, f.url()+"/counters/alice/increment")
		return err == nil && a.status == http.StatusOK && string(a.body) == "alice 1\n"
	})
	p.signal(t, termination)
	p.awaitEnd(t)
	require.Empty(t, f.listWorkers(t), "it has deregistered")
}
