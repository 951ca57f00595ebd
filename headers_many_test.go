package pinboard

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/upstream"
)

// A worker's head of the size that an operator may allow has more fields than
// can be compared with each other.
func TestManyFieldsOfAnAnswerAreCopiedInOrder(t *testing.T) {
	t.Parallel()
	for _, many := range []int{3, 300_000} {
		var src upstream.Header
		for i := range many {
			src = append(src, upstream.Field{Name: fmt.Sprint("A", i), Value: "1"}, upstream.Field{Name: "Same", Value: fmt.Sprint(i)})
		}
		dst := http.Header{"Same": {"of the host"}, "Other": {"of the host"}}
		copyFields(dst, src)
		require.Len(t, dst, many+2)
		require.Len(t, dst["Same"], many)
		for i, value := range dst["Same"] {
			if value != fmt.Sprint(i) {
				t.Fatalf("%s comes at %d", value, i)
			}
		}
	}
}
