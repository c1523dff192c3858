package main

import (
	"context"
	"fmt"
	"os"
	"time"

	cri "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"
)

const callTimeout = 20 * time.Second

// removePods stops and removes every pod that a container runtime has: `kube criclean unix:///run/containerd.sock`.
// A kubelet that ends leaves its pods running, with their network interfaces, addresses and control groups.
func removePods(arguments []string) int {
	if len(arguments) != 1 {
		fmt.Fprintln(os.Stderr, "usage: kube criclean ENDPOINT")
		return 2
	}
	if err := removeAll(context.Background(), arguments[0]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Every pod is tried; the error is the last one.
func removeAll(ctx context.Context, endpoint string) error {
	logger := klog.Background()
	runtime, err := cri.NewRemoteRuntimeService(endpoint, callTimeout, nil, &logger)
	if err != nil {
		return err
	}
	pods, err := runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		// What cannot be stopped in good order may still be removed.
		if stopped := runtime.StopPodSandbox(ctx, pod.Id); stopped != nil {
			err = fmt.Errorf("%s/%s cannot be stopped: %w", pod.Metadata.Namespace, pod.Metadata.Name, stopped)
		}
		if removed := runtime.RemovePodSandbox(ctx, pod.Id); removed != nil {
			err = fmt.Errorf("%s/%s cannot be removed: %w", pod.Metadata.Namespace, pod.Metadata.Name, removed)
		}
	}
	return err
}
