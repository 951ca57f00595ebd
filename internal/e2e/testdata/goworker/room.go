package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/pinboard-go/pinboard/worker"
)

// room is one instance.
type room struct {
	*worker.Instance
	turns chan struct{} // a token for each event to come

	mu    sync.Mutex
	count int
	blob  []byte
	letGo chan struct{}
}

func newRoom(inst *worker.Instance) (http.Handler, error) {
	r := &room{Instance: inst, turns: make(chan struct{}, 100)}
	tell("open", map[string]any{"id": inst.ID()})
	inst.OnClose(func(ctx context.Context) error {
		tell("close", map[string]any{"id": inst.ID()})
		if os.Getenv("APP_CLOSING") == "" {
			return nil
		}
		select { // as if it saved its state
		case <-time.After(seconds("APP_CLOSING")):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /state", r.getState)
	mux.HandleFunc("POST /add", r.add)
	mux.HandleFunc("PUT /blob", r.putBlob)
	mux.HandleFunc("GET /blob", r.getBlob)
	mux.HandleFunc("GET /events", r.events)
	mux.HandleFunc("POST /next", r.next)
	mux.HandleFunc("GET /socket", r.socket)
	mux.HandleFunc("POST /hold", r.hold)
	mux.HandleFunc("POST /let-go", r.endHold)
	mux.HandleFunc("GET /who", func(w http.ResponseWriter, req *http.Request) { answer(w, who(req)) })
	mux.HandleFunc("POST /relay", func(w http.ResponseWriter, req *http.Request) {
		answer(w, map[string]any{"pid": os.Getpid(), "who": who(req)})
	})
	return mux, nil
}

// state answers with the instance's state. The caller holds the lock.
func (r *room) state(w http.ResponseWriter) {
	answer(w, map[string]any{
		"id": r.ID(), "pid": os.Getpid(), "epoch": r.Epoch(), "count": r.count, "windingDown": r.WindingDown(),
	})
}

func (r *room) getState(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state(w)
}

func (r *room) add(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	tell("add", map[string]any{"id": r.ID(), "count": r.count})
	r.state(w)
}

func (r *room) putBlob(w http.ResponseWriter, req *http.Request) {
	blob, err := io.ReadAll(req.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blob = blob
	sum := sha256.Sum256(blob)
	answer(w, map[string]any{"bytes": len(blob), "sha256": hex.EncodeToString(sum[:])})
}

func (r *room) getBlob(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(r.blob)
}

// events sends the first event at once, each further one after a POST to next.
func (r *room) events(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for number := 0; ; number++ {
		if _, err := fmt.Fprintf(w, "data: %d\n\n", number); err != nil {
			return
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-r.turns:
		case <-req.Context().Done():
			return
		}
	}
}

func (r *room) next(w http.ResponseWriter, _ *http.Request) {
	r.turns <- struct{}{}
	answer(w, map[string]any{})
}

func (r *room) socket(w http.ResponseWriter, req *http.Request) {
	conn, err := websocket.Accept(w, req, nil)
	if err != nil {
		return
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(4 << 20)
	for {
		kind, message, err := conn.Read(req.Context())
		if err != nil {
			return
		}
		if conn.Write(req.Context(), kind, message) != nil {
			return
		}
	}
}

// hold starts work that ends with a POST to let-go, or when it is cut.
func (r *room) hold(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	letGo := make(chan struct{})
	r.letGo = letGo
	r.Go(func(ctx context.Context) {
		select {
		case <-letGo:
		case <-ctx.Done():
		}
	})
	answer(w, map[string]any{})
}

func (r *room) endHold(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.letGo)
	answer(w, map[string]any{})
}

// who tells on whose behalf a request comes.
func who(req *http.Request) map[string]any {
	told := map[string]any{"kind": "anonymous", "authorization": nil}
	if sent := req.Header.Get("Authorization"); sent != "" {
		told["authorization"] = sent
	}
	caller, ok := worker.CallerFrom(req.Context())
	switch {
	case ok && caller.Instance != nil:
		told["kind"], told["ns"], told["id"], told["depth"] = "instance", caller.Instance.Namespace, caller.Instance.ID, caller.Instance.Depth
	case ok && caller.Account != nil:
		scopes := slices.Sorted(slices.Values(caller.Account.Scopes))
		told["kind"], told["sub"], told["scopes"], told["claims"] = "account", caller.Account.Subject, scopes, caller.Account.Claims
	}
	return told
}
