// Command oracle says which nodes kube-scheduler's own filter plugins let a pod pass.
//
// Linked in as they are: NodeAffinity (with nodeSelector), TaintToleration and NodeUnschedulable,
// with the feature gates that this release has by default. They are run as the scheduler runs
// them: a plugin whose PreFilter skips the pod filters nothing, and a PreFilter may name the only
// nodes that are looked at.
//
// It answers each line of JSON on standard input with one on standard output:
//
//	{"nodes": [Node, …]}             keeps these nodes for the lines that follow
//	{"pods": [Pod, …]}               {"passes": [[name, …], …]}: for each pod, names in fleet order
//	{"pods": [Pod], "why": true}     also {"why": [{name: "plugin: message", …}]} for other nodes
//
// `nanoseconds` in an answer is what the plugins took, without reading and writing JSON. A line
// that cannot be read is answered with {"error": "…"}.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeunschedulable"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/tainttoleration"
	kjson "sigs.k8s.io/json"
)

// plugin is what all three of them are.
type plugin interface {
	fwk.PreFilterPlugin
	fwk.FilterPlugin
}

type request struct {
	Nodes *[]json.RawMessage `json:"nodes"`
	Pods  []json.RawMessage  `json:"pods"`
	Why   bool               `json:"why"`
}

type answer struct {
	Error       string              `json:"error,omitempty"`
	Nodes       int                 `json:"nodes"`
	Passes      [][]string          `json:"passes"`
	Why         []map[string]string `json:"why,omitempty"`
	Nanoseconds int64               `json:"nanoseconds"`
}

type oracle struct {
	plugins []plugin
	nodes   []fwk.NodeInfo
}

func main() {
	ctx := context.Background()
	plugins, err := newPlugins(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
	// A toleration or a label that the plugins cannot read is what the tests ask on purpose.
	klog.SetLogger(klog.Logger{})
	asked := &oracle{plugins: plugins}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		told, err := asked.answer(ctx, line)
		if err != nil {
			told = answer{Error: err.Error(), Passes: [][]string{}}
		}
		if err := encoder.Encode(told); err != nil {
			return
		}
		if err := out.Flush(); err != nil {
			return
		}
	}
}

func newPlugins(ctx context.Context) ([]plugin, error) {
	gates := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	unschedulable, err := nodeunschedulable.New(ctx, nil, nil, gates)
	if err != nil {
		return nil, err
	}
	taints, err := tainttoleration.New(ctx, nil, nil, gates)
	if err != nil {
		return nil, err
	}
	affinity, err := nodeaffinity.New(ctx, &config.NodeAffinityArgs{}, nil, gates)
	if err != nil {
		return nil, err
	}
	// The order in which the default profile of kube-scheduler has them.
	return []plugin{unschedulable.(plugin), taints.(plugin), affinity.(plugin)}, nil
}

func (o *oracle) answer(ctx context.Context, line []byte) (answer, error) {
	var asked request
	if err := json.Unmarshal(line, &asked); err != nil {
		return answer{}, err
	}
	if asked.Nodes != nil {
		nodes, err := readNodes(*asked.Nodes)
		if err != nil {
			return answer{}, err
		}
		o.nodes = nodes
	}
	pods := make([]*v1.Pod, len(asked.Pods))
	for i, raw := range asked.Pods {
		pods[i] = &v1.Pod{}
		// As the API server reads: names of fields are case-sensitive.
		if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, pods[i]); err != nil {
			return answer{}, fmt.Errorf("pod %d: %w", i, err)
		}
	}
	told := answer{Nodes: len(o.nodes), Passes: make([][]string, len(pods))}
	if asked.Why {
		told.Why = make([]map[string]string, len(pods))
	}
	began := time.Now()
	for i, pod := range pods {
		var why map[string]string
		if asked.Why {
			why = map[string]string{}
			told.Why[i] = why
		}
		told.Passes[i] = o.passes(ctx, pod, why)
	}
	told.Nanoseconds = time.Since(began).Nanoseconds()
	return told, nil
}

func readNodes(raws []json.RawMessage) ([]fwk.NodeInfo, error) {
	nodes := make([]fwk.NodeInfo, 0, len(raws))
	for i, raw := range raws {
		node := &v1.Node{}
		if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, node); err != nil {
			return nil, fmt.Errorf("node %d: %w", i, err)
		}
		info := framework.NewNodeInfo()
		info.SetNode(node)
		nodes = append(nodes, info)
	}
	return nodes, nil
}

// passes returns the names of the nodes that no plugin rejects for the pod; why, where it is not
// nil, gets the reason for each of the others.
func (o *oracle) passes(ctx context.Context, pod *v1.Pod, why map[string]string) []string {
	passing := []string{}
	state := framework.NewCycleState()
	var only sets.Set[string]
	var filters []plugin
	for _, p := range o.plugins {
		result, status := p.PreFilter(ctx, state, pod, o.nodes)
		if status.IsSkip() {
			continue
		}
		if !status.IsSuccess() {
			o.reject(why, nil, p.Name()+" (PreFilter): "+status.Message())
			return passing
		}
		filters = append(filters, p)
		if !result.AllNodes() {
			if only == nil {
				only = result.NodeNames
			} else {
				only = only.Intersection(result.NodeNames)
			}
		}
	}
nodes:
	for _, info := range o.nodes {
		name := info.Node().Name
		if only != nil && !only.Has(name) {
			o.reject(why, info, "NodeAffinity (PreFilter): the pod names other nodes")
			continue
		}
		for _, p := range filters {
			if status := p.Filter(ctx, state, pod, info); !status.IsSuccess() {
				o.reject(why, info, p.Name()+": "+status.Message())
				continue nodes
			}
		}
		passing = append(passing, name)
	}
	return passing
}

// reject notes why a node does not pass; without a node, why none does.
func (o *oracle) reject(why map[string]string, node fwk.NodeInfo, reason string) {
	if why == nil {
		return
	}
	if node != nil {
		why[node.Node().Name] = reason
		return
	}
	for _, info := range o.nodes {
		why[info.Node().Name] = reason
	}
}
