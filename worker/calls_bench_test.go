package worker

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// BenchmarkCall compares a call in process with the same one over a loopback
// socket, which is what it would cost at the least without pinboard in between.
func BenchmarkCall(b *testing.B) {
	construct := serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, _ = io.Copy(w, r.Body)
			return
		}
		_, _ = io.WriteString(w, "hello")
	})
	pb := &fakePinboard{began: time.Now()}
	w, err := build(Options{
		PinboardURL: "http://pinboard:8080", Token: "t", AdvertiseURL: "http://worker:8000", Transport: pb,
	}, none, systemClock, func() float64 { return 1 })
	require.NoError(b, err)
	pb.worker = w
	var inst *Instance
	require.NoError(b, w.Host("/c", func(i *Instance) (http.Handler, error) {
		inst = i
		return construct(i)
	}))
	require.NoError(b, w.Start())
	require.NoError(b, w.AwaitReady(b.Context()))
	server := httptest.NewServer(w)
	token := func() string {
		token, err := attest.Mint(w.reg.secret, attest.Claims{Audience: w.reg.sessionID()}, time.Now())
		require.NoError(b, err)
		return token
	}
	direct := &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: maxIdleCalls}}
	ask := func(client *http.Client, url, body string) {
		method := http.MethodGet
		if body != "" {
			method = http.MethodPost
		}
		req, _ := http.NewRequest(method, url+"/c/1", strings.NewReader(body))
		if url != "" {
			req.Header.Set(wire.HeaderAttestation, token())
			req.Header.Set(wire.HeaderEpoch, "5")
		}
		res, err := client.Do(req)
		require.NoError(b, err)
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		require.Equal(b, http.StatusOK, res.StatusCode)
	}
	ask(direct, server.URL, "")
	for name, body := range map[string]string{"small": "", "1MB": strings.Repeat("x", 1<<20)} {
		b.Run(name+"/in process", func(b *testing.B) {
			client := inst.Client()
			for b.Loop() {
				ask(client, "", body)
			}
		})
		b.Run(name+"/loopback socket", func(b *testing.B) {
			for b.Loop() {
				ask(direct, server.URL, body)
			}
		})
	}
	direct.CloseIdleConnections()
	server.Close()
	require.NoError(b, w.Shutdown(context.Background()))
}
