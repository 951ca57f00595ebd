package main

import "net/http"

// connectionKey is of a request's connection in its context.
type connectionKey struct{}

// keepWorkers has no connection cut for those of others by which a worker has got a
// lease. It has no request most of the time, and would be the first of its network to be
// cut; a worker that can't come back then loses all its instances.
func keepWorkers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/registry/register" && r.URL.Path != "/registry/heartbeat" {
			next.ServeHTTP(w, r)
			return
		}
		answer := &answered{ResponseWriter: w}
		next.ServeHTTP(answer, r)
		if c, ok := r.Context().Value(connectionKey{}).(*counted); ok && answer.status == http.StatusOK {
			c.keep()
		}
	})
}

// answered notes the status of an answer.
type answered struct {
	http.ResponseWriter
	status int
}

func (a *answered) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is for an http.ResponseController.
func (a *answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }
