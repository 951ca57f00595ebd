package worker_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// startPinboard starts a stand-in for pinboard with room for one worker: it
// agrees to everything, and proxies all requests as an account named ada.
func startPinboard() *httptest.Server {
	var registered atomic.Pointer[wire.Register]
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+wire.PathRegister, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		reg, err := wire.ParseRegister(body)
		if err != nil || r.Header.Get("Authorization") != "Bearer a-token" {
			http.Error(w, "{}", http.StatusBadRequest)
			return
		}
		registered.Store(reg)
		_ = json.NewEncoder(w).Encode(wire.Registered{SessionID: "the-session", ExpiresInMs: 15000})
	})
	mux.HandleFunc("POST /registry/", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(wire.Beat{ExpiresInMs: 15000})
	})
	transport := &http.Transport{DisableKeepAlives: true}
	mux.Handle("/", &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		reg := registered.Load()
		target, _ := url.Parse(reg.AdvertiseURL)
		r.SetURL(target)
		token, _ := attest.Mint(reg.Secret, attest.Claims{
			Audience: "the-session", Account: &attest.Account{Subject: "ada"},
		}, time.Now())
		r.Out.Header.Set(wire.HeaderAttestation, token)
		r.Out.Header.Set(wire.HeaderEpoch, "1")
	}})
	return httptest.NewServer(mux)
}
