package quiet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/quiet"
)

const hush = "planted-0123456789abcdef"

// asked returns the error of a request that gets these bytes for an answer.
func asked(t *testing.T, answer string) error {
	t.Helper()
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			_, _ = io.ReadAtLeast(server, make([]byte, 4096), 1)
			_, _ = io.WriteString(server, answer)
			_ = server.Close()
		}()
		return client, nil
	}}
	t.Cleanup(transport.CloseIdleConnections)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://worker/", nil)
	require.NoError(t, err)
	res, err := (&http.Client{Transport: transport}).Do(r)
	if err == nil {
		_, err = io.ReadAll(res.Body)
		_ = res.Body.Close()
	}
	require.Error(t, err)
	return err
}

func TestAnAnswerThatIsNoneIsNotQuoted(t *testing.T) {
	t.Parallel()
	quoted := 0
	for _, answer := range []string{
		"Bearer " + hush + "\r\n\r\n", "HTTP/1.1 " + hush + "\r\n\r\n", "HTTP/1.1 200 OK\r\nSet-Cookie " + hush + "\r\n\r\n", "HTTP/" + hush + " 200 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: " + hush + "\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: " + hush + "\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + hush + "\r\n", "", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
	} {
		err := asked(t, answer)
		if strings.Contains(err.Error(), hush) {
			quoted++
		}
		said := quiet.Transport(err).Error()
		require.NotContains(t, said, hush)
		require.NotEmpty(t, said)
	}
	require.Positive(t, quoted, "net/http quotes nothing any more")
}

func TestWhatHelpsIsKept(t *testing.T) {
	t.Parallel()
	refused := fmt.Errorf("call: %w", &net.OpError{Op: "dial", Err: errors.New("connection refused")})
	require.Equal(t, refused, quiet.Transport(refused))
	for want, err := range map[string]error{
		"timed out": fmt.Errorf("x: %w", context.DeadlineExceeded), "given up": context.Canceled, "connection closed": io.ErrUnexpectedEOF,
		"no HTTP answer (*errors.errorString)": fmt.Errorf("x: %w", errors.New(hush)),
	} {
		require.EqualError(t, quiet.Transport(err), want)
	}
}

func TestACommandThatRedisRepeatsIsCutOff(t *testing.T) {
	t.Parallel()
	require.Equal(t, "ERR unknown command 'EVALSHA', with args not shown",
		quiet.Redis("ERR unknown command 'EVALSHA', with args beginning with: '7' '"+hush+"'"))
	require.Equal(t, "LOADING Redis is loading the dataset in memory", quiet.Redis("LOADING Redis is loading the dataset in memory"))
	require.Less(t, len(quiet.Redis(strings.Repeat("x", 5000))), 300)
}
