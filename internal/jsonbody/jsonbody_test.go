package jsonbody

import (
	"math"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnAnswerIsWholeAndIsNotKept(t *testing.T) {
	t.Parallel()
	rec := httptest.NewRecorder()
	Write(rec, 409, map[string]string{"error": "no"})
	require.Equal(t, 409, rec.Code)
	require.Equal(t, `{"error":"no"}`, rec.Body.String())
	require.Equal(t, "application/json", rec.Header().Get("Content-Type"))
	require.Equal(t, "no-store", rec.Header().Get("Cache-Control"))
	require.Equal(t, "14", rec.Header().Get("Content-Length"))
	require.Panics(t, func() { Write(rec, 200, math.Inf(1)) })
}
