package main

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard"
)

// The server tells a connection that it is taken over, whose reads must bring something
// from then on, and that a request is part of it.
func TestTheServerTellsConnectionsOfWhatItDoes(t *testing.T) {
	t.Parallel()
	raw, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	limited := limitConnections(raw, &pinboard.Environment{}, zap.NewNop())
	got := make(chan string, 1)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		if _, ours := conn.(*counted); !ours {
			got <- "another connection"
			return
		}
		var one [1]byte
		n, err := conn.Read(one[:])
		_ = conn.Close()
		<-r.Context().Done()
		if err == nil {
			got <- string(one[:n])
		}
	}), ReadHeaderTimeout: patience}
	server.ConnState, server.ConnContext = limited.follow, limited.context
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(limited)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	client := dialTo(t, raw.Addr().String())
	_, err = io.WriteString(client, "GET / HTTP/1.1\r\nHost: p\r\n\r\n")
	require.NoError(t, err)
	select {
	case early := <-got:
		require.Fail(t, "nothing was sent", early)
	case <-time.After(20 * time.Millisecond): // a read that returns nothing would be over
	}
	_, err = io.WriteString(client, "!")
	require.NoError(t, err)
	select {
	case text := <-got:
		require.Equal(t, "!", text)
	case <-time.After(patience):
		require.Fail(t, "the request's context goes on without its connection")
	}
	total, _ := limited.quota.Use()
	require.Zero(t, total, "it does not count any more")
}
