// Package jsonbody writes the JSON answers that pinboard and its workers give on
// their own behalf.
package jsonbody

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/pinboard-go/pinboard/internal/leak"
)

// Write answers with the status and the body, which no cache may keep. It panics
// if the body can't be encoded: bodies are types of this module.
func Write(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	leak.Said(text)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text) // a client that has left needs no answer
}
