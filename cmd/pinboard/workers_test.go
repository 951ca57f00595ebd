package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const workersToken = "planted-token-of-a-worker"

// post makes a worker's call on a connection.
func post(t *testing.T, conn io.ReadWriter, token, path string, body map[string]any) map[string]any {
	t.Helper()
	text, err := json.Marshal(body)
	require.NoError(t, err)
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", path, token, len(text), text)
	require.NoError(t, err)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode)
	var told map[string]any
	require.NoError(t, json.NewDecoder(res.Body).Decode(&told))
	return told
}

// A worker's connection waits for its next heartbeat most of the time, and there may be
// no other for it once it is cut.
func TestTheConnectionOfAWorkerIsNotCutForThoseOfOthers(t *testing.T) {
	t.Parallel()
	const secret, challenge = "d2bd16fde64c9ee60b1b0fa46ff9b8f5e7b2dc6c9cf0b3c1d4e5f60718293a4b", "c1"
	probed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"value":"v1"}`)
	}))
	defer probed.Close()
	addr := start(t, "PINBOARD_MAX_CONNECTIONS=4", "PINBOARD_MAX_CONNECTIONS_PER_ADDRESS=4", "PINBOARD_PASSPORT="+strings.NewReplacer(
		"planted-token-of-an-operator", workersToken, "pinboard:operator", "pinboard:worker", `"namespaces":["*"]`, `"namespaces":["*"],"allowedBackendHosts":["*"]`,
	).Replace(document))
	worker := dialFrom(t, "127.0.100.1", addr)
	session := post(t, worker, workersToken, "/registry/register", map[string]any{
		"clientId": "a-worker-of-another-network", "secret": secret, "namespaces": []string{"/counters"}, "advertiseUrl": probed.URL,
		"headroom": 1, "draining": false, "challenge": challenge, "challengeValue": "v1",
	})["sessionId"]
	for range 3 { // of its network, with a request that does not end
		conn := dialFrom(t, "127.0.100.2", addr)
		_, err := io.WriteString(conn, "POST /registry/release HTTP/1.1\r\nHost: p\r\nContent-Length: 2\r\nExpect: 100-continue\r\nAuthorization: Bearer "+workersToken+"\r\n\r\n")
		require.NoError(t, err)
		_, err = io.ReadFull(conn, make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n")))
		require.NoError(t, err)
	}
	for n := range 2 {
		require.Equal(t, http.StatusOK, healthy(t, dialFrom(t, fmt.Sprint("127.0.", 1+n, ".1"), addr)).StatusCode)
	}
	post(t, worker, workersToken, "/registry/heartbeat", map[string]any{
		"sessionId": session, "headroom": 1, "draining": false, "challenge": challenge, "challengeValue": "v1",
	})
}
